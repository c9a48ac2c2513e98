#!/bin/sh
# Known weaknesses of what undrift is built on: audit.sh PYTHON. The auditor gets an environment of its own.
# Exit code 0: none is known; 1: some are, listed; 3: the database of advisories does not answer, or not for all of it.
set -u
cd "$(dirname "$0")/.."
place=build/audit
[ -x "$place/bin/python" ] || "$1" -m venv "$place" || exit 3
if ! "$place/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit 2>"$place/said"; then
    echo "audit: pip-audit cannot be installed ($(tail -n 1 "$place/said"))" >&2
    exit 3
fi
if "$place/bin/python" -m pip_audit --requirement constraints.txt --no-deps --disable-pip --strict 2>"$place/said"; then
    echo "audit: no known weaknesses"
elif grep -q "Found .* known vulnerabilit" "$place/said"; then
    grep "Found .* known vulnerabilit" "$place/said" >&2
    exit 1
else
    echo "audit: the database of advisories cannot be reached, or does not know all of it ($(grep -v '^ *$' "$place/said" | tail -n 1 | cut -c 1-200))" >&2
    exit 3
fi
