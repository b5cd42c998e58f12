PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check check-portable bench clean

demo: .venv/installed  ## train the quickstart ablation and print its table
	$(BIN)/lm ablate experiments/quickstart.yaml

test: check  ## everything: the fast checks, then the tests that train
	$(BIN)/pytest -n 2 -m slow

check: .venv/installed  ## the fast loop: lint, types, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow"

PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=1

check-portable: .venv/installed  ## the unit tests with the kernels of other kinds of processor, and on one thread
	@failed=0; for setting in $(PROCESSORS); do \
	    said=$$(env $$setting $(BIN)/pytest -n 2 -m "not slow" 2>&1) || { failed=1; echo "$$said" | grep -E "^(FAILED|ERROR)"; }; \
	    echo "$$setting: $$(echo "$$said" | tail -n 1)"; \
	done; exit $$failed

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
