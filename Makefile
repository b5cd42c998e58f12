PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check bench clean

demo: .venv/installed  ## train the quickstart ablation and print its table
	$(BIN)/lm ablate experiments/quickstart.yaml

test: check  ## everything: the fast checks, then the tests that train
	$(BIN)/pytest -m slow

check: .venv/installed  ## the fast loop: lint, types, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow"

bench: .venv/installed  ## the harness against a bare loop, generation with a cache, calibration against torchmetrics
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/generation.py
	$(BIN)/python benchmarks/calibration.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:  ## remove the virtual environment
	rm -rf .venv
