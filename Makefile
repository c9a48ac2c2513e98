# Every target sets up what it needs in .venv, from pyproject.toml under constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format bench clean

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray,flower,report,dev]'
	touch $@

demo: .venv/ready
	$(BIN)/undrift demo

test: .venv/ready
	$(BIN)/python -m pytest -n 3

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv build dist src/*.egg-info
