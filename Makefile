# Every target sets up what it needs in .venv, from pyproject.toml under constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Only what is imported gets compiled, when it is (a minute less), and that is kept, whatever the environment says:
# the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test test-processors coverage lint format docs package bench advice fuzz soak audit clean

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt torch numpy
	$(PIP) -c constraints.txt -e '.[ray,flower,privacy,report,log,docs,dev]'
	touch $@

demo: .venv/ready
	$(BIN)/undrift demo

test: .venv/ready
	$(BIN)/python -m pytest -n 3

# A part of the tests as if on processors with fewer instructions. PART=tests/... runs another part.
PART ?= tests/test_layout.py tests/test_hooks.py tests/rules tests/split/test_split_closed_form.py tests/engines/test_ray.py -k 'not dies and not leaves and not lost and not actor and not test_privacy'
test-processors: .venv/ready
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(BIN)/python -m pytest -n 3 $(PART)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 $(BIN)/python -m pytest -n 3 $(PART)

# The tests again, counting which lines they reach; fails below the floor, which only ever rises.
FLOOR ?= 92
coverage: .venv/ready
	$(BIN)/python -m pytest -n 3 --cov --cov-report=term:skip-covered --cov-fail-under=$(FLOOR)

# The documentation as a site in build/site; a broken link, an unknown name or a warning is an error. Fetches nothing.
docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Wheel and sdist, installed and used outside of this folder.
package: .venv/ready
	tools/package.sh $(BIN)/python

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python benchmarks/run.py

# Is the advice of `undrift diagnose` any good? Needs the data sets; about an hour on one core, goes on where it was.
advice: .venv/ready
	nice -n 5 $(BIN)/python benchmarks/advice/judge.py --part held-out --out build/advice
	$(BIN)/python benchmarks/advice/table.py --out build/advice

# The campaign: absurd configurations and command lines, damaged folders and data files, rogue messages.
# SEED, SECONDS (for each part).
SEED ?= 0
SECONDS ?= 600
fuzz: .venv/ready
	nice -n 5 $(BIN)/python tests/robust/fuzzing.py --seed $(SEED) --seconds $(SECONDS)

# Ten thousand rounds and two hundred kills, of local runs, on Ray, and among real sites.
soak: .venv/ready
	nice -n 5 $(BIN)/python tests/robust/soaking.py --rounds 10000 --kills 200 --seed $(SEED)

# Known weaknesses of what undrift is built on; where the database of advisories cannot be reached it says so.
audit:
	tools/audit.sh $(PYTHON)

clean:
	rm -rf .venv build dist src/*.egg-info
