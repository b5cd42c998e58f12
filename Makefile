PYTHON ?= python3
BIN := .venv/bin
SHELL := bash

# Ways in which other processors compute: without AMX and AVX-512, without any vectors, sums shared by two threads.
PORTABLE := OMP_NUM_THREADS=2 ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2

# One thread a test process: two that wait for each other on two cores are slower than one.
export OMP_NUM_THREADS ?= 1

# What was compiled once is kept, also where the environment says otherwise: every process of tests would do it again.
export PYTHONDONTWRITEBYTECODE =

# Installs what it is called with and shows on one line which package is at hand; what pip says follows if it fails.
INSTALL = log=$$(mktemp); $(BIN)/pip install --no-compile --constraint constraints.txt --editable $(1) 2>&1 | tee $$log | \
	awk '/^(Collecting|Processing)/ { name = $$2; sub(".*/", "", name); sub("[^A-Za-z0-9_-].*", "", name); sub("-[0-9]*$$", "", name); \
	printf "\r  %3d packages: %-40s", ++n, name; fflush() } \
	/^Installing collected/ { printf "\r  writing them to disk%-40s\n", ""; fflush() }'; \
	status=$${PIPESTATUS[0]}; test $$status = 0 || cat $$log; rm -f $$log; test $$status = 0

REFERENCE ?= results/reference

# What `make bench` is told: cases and options of `python -m benchmarks`; all cases where it is empty.
BENCH ?=

# Options of `make faults`; every fault where it is empty.
FAULTS ?=

# Options of `make audit`, such as --full.
AUDIT ?=

# Arguments of `make verify`: ids of worked examples and options; all examples where it is empty.
VERIFY ?=

# Extras of pyproject.toml whose tests `make test-all` runs.
EXTRAS := dashboard,eval,optimizers,postgres,ray,slurm,track

.PHONY: demo test test-all check check-portable golden fuzz coverage advisories audit faults verify parity bench docs paper schema references screenshots clean

demo: .venv/base  ## train the quickstart ablation and print its table
	$(BIN)/lm ablate experiments/quickstart.yaml

test: .venv/installed  ## all but `extra` tests, beside lint and types; three at a time, as some wait for a process
	@$(call checked,-n 3 --dist loadscope -m "not extra")

test-all:  ## all there is to check, a line each: lint types fast slow extra fuzz gpu portable examples docs hooks advisories, or PARTS="docs hooks"
	@MAKE="$(MAKE)" bash .ci/all $(PARTS)

check: .venv/installed  ## the fast loop: lint, types beside the unit tests
	@$(call checked,-n 2 -m "not slow")

# Lint, then types beside the tests that pytest's arguments choose. The first time one process compiles all modules, which
# is a minute of work: processes that start together would each do it.
define checked
$(BIN)/ruff format --check . && $(BIN)/ruff check . || exit 1; \
said=$$(mktemp); $(BIN)/mypy > $$said 2>&1 & types=$$!; \
test -e .venv/compiled || { $(BIN)/pytest --collect-only > /dev/null && touch .venv/compiled; }; \
$(BIN)/pytest $(1); tests=$$?; \
wait $$types; types=$$?; cat $$said; rm -f $$said; test $$tests = 0 && test $$types = 0
endef

check-portable: .venv/installed  ## the unit tests as other processors compute: a line each with its counts
	@status=0; for setting in $(PORTABLE); do \
		if said=$$(env $$setting $(BIN)/pytest -n 2 -m "not slow" 2>&1); then :; else status=1; echo "$$said"; fi; \
		echo "$$setting: $$(echo "$$said" | tail -n 1)"; \
	done; exit $$status

golden: .venv/installed  ## what the code computes against what is committed, to the last digit: tables, claims, ids of cells, pinned numbers
	$(BIN)/python tests/golden.py
	$(BIN)/pytest -n 2 tests/config/test_behaviour.py

fuzz: .venv/installed  ## 10,000 made-up files and command lines; FUZZ_CASES=N tries N of them
	FUZZ_CASES=$(or $(FUZZ_CASES),10000) $(BIN)/pytest -n 2 tests/test_properties.py tests/cli/test_fuzz.py

coverage: .venv/installed  ## lines and branches of lm that the unit tests do not reach
	$(BIN)/pytest -n 2 -m "not slow" --cov=lm --cov-branch --cov-report=term-missing:skip-covered

advisories:  ## advisories known of the versions in constraints.txt; left out with a reason where there is nobody to ask
	@MAKE="$(MAKE)" bash .ci/advisories || test $$? = 77

audit: .venv/installed  ## check the statistics on simulated experiments; AUDIT="--full" at full size, AUDIT="--cells DIR" on real cells
	@PYTHONPATH=tests $(BIN)/python -m statistics_audit $(AUDIT)

faults: .venv/installed  ## disturb small runs and compare each with one left alone; FAULTS="--kills 20 --faults kills" says which
	@PYTHONPATH=tests $(BIN)/python -m faults $(FAULTS)

verify: .venv/installed  ## check the library against the worked examples; VERIFY=attn-3x4 names one
	@PYTHONPATH=tests $(BIN)/python -m worked_examples $(VERIFY)

parity: .venv/installed  ## published models in small against transformers, and the table of docs/families.md
	@PYTHONPATH=tests $(BIN)/python tests/parity.py

references: .venv/installed  ## pack what lies in results/reference as folders; each file that a pack gives back is removed
	@set -e; lm="$(abspath $(BIN))/lm"; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; cd $(REFERENCE); \
	for manifest in */experiment.json */study.json; do \
		if [ -f "$$manifest" ]; then "$$lm" pack "$$(dirname "$$manifest")" --thin; fi; \
	done; \
	for pack in *.lmpack; do \
		own="$$there/$${pack%.lmpack}"; \
		"$$lm" unpack "$$pack" --out "$$own" 2> "$$there/said" || { cat "$$there/said"; exit 1; }; \
		(cd "$$own" && find . -type f ! -path './cells/.locks/*') | while read -r file; do \
			if cmp -s "$$file" "$$own/$$file"; then rm "$$file"; fi; \
			rm -f "$${file%.thin.json}.csv"; \
		done; \
	done; \
	rm -f */report.html; \
	if [ -d cells ]; then rm -rf cells/.locks; find cells -type d -empty -delete; fi; \
	if [ -d cells ]; then echo "in no pack, and left:"; find cells -type f; exit 1; fi

docs: .venv-docs/installed  ## the pages of docs/ as a site in docs/_build
	.venv-docs/bin/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build

paper: .venv/installed  ## docs/paper.pdf from the committed packs, by pdflatex; one to three minutes
	$(BIN)/python docs/paper/make.py

schema: .venv/installed  ## the JSON Schema that the first lines of shipped YAML files name, in docs/schema, for editors
	$(BIN)/lm schema --write docs/schema

screenshots: .venv/installed  ## docs/screens: the page of glu at 1400 and 400 pixels, a terminal of 80 columns; needs chromium
	bash .ci/screenshots

bench: .venv/bench  ## speed and memory on this machine, as docs/bench.md describes; BENCH="step --nanogpt PATH" says what of it
	env -u OMP_NUM_THREADS $(BIN)/python -m benchmarks $(BENCH) --out docs/bench

# What running needs and nothing else. Modules are compiled when they are first imported: most never are.
.venv/base: pyproject.toml constraints.txt
	@echo "installing what running needs into .venv: about 80 packages, 1.5 GB, one to three minutes"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --upgrade 'pip>=25' 2> /dev/null || true  # older ones take twice as long
	@$(call INSTALL,'.')
	@touch $@

.venv/installed: .venv/base
	@echo "installing what the tests need besides: about 50 packages"
	@$(call INSTALL,'.[dev]')
	@touch $@

# litgpt asks for older versions of what the rest needs; its model works with these.
.venv/bench: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps litgpt psutil
	touch $@

# What `make test-all` needs besides: the packages that are optional, of which each has tests marked `extra`.
.venv/extras: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,$(EXTRAS)]'
	touch $@

.venv-docs/installed: constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --constraint constraints.txt sphinx myst-parser
	touch $@

.venv-hooks/installed: constraints.txt
	$(PYTHON) -m venv .venv-hooks
	.venv-hooks/bin/pip install --quiet --constraint constraints.txt pre-commit
	touch $@

.venv-audit/installed: constraints.txt
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install --quiet --constraint constraints.txt pip-audit
	touch $@

clean:  ## remove the virtual environments, the site and the schema
	rm -rf .venv .venv-docs .venv-hooks .venv-audit docs/_build docs/schema
