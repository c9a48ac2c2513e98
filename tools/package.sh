#!/usr/bin/env bash
# Build wheel and sdist, install each outside of the repository, and use what was installed: tools/package.sh PYTHON
# PYTHON has undrift's dependencies and `build`; they are borrowed, undrift itself comes from the built files.
set -euo pipefail
python=$(realpath -s "${1:-.venv/bin/python}")
repository=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH
cd "$place"

"$python" -m build --no-isolation --outdir dist "$repository" > build.log 2>&1 || { cat build.log; exit 1; }
borrowed=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

for file in dist/*.whl dist/*.tar.gz; do
    home=$place/${file##*.}
    "$python" -m venv --without-pip "$home"
    own=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$borrowed" > "$own/borrowed.pth" # a bare path: editable installs that lie there are not followed
    "$python" -m pip --python "$home/bin/python" install --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation --ignore-installed "$file"
    "$home/bin/python" -c "import undrift; assert undrift.__file__.startswith('$own'), undrift.__file__"
    echo "$(basename "$file"): $("$home/bin/undrift" --version)"
    "$home/bin/undrift" init "$home/first.toml"
    "$home/bin/undrift" run "$home/first.toml" --set train.rounds=2 --out "$home/first" --quiet
    "$home/bin/undrift" report "$home/first"
done
"$place/whl/bin/undrift" demo --out demo --quiet
test -s demo/report.html
