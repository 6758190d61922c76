# Every target works from a bare checkout: it creates .venv with $(PYTHON) and installs what it needs.
# Override on the command line, e.g. `make test PYTHON=python3.12 PYTEST_ARGS="-x -k risks"`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEMO_OUT ?= demo-output
REPRODUCE_OUT ?= sorel-reproduction
REPRODUCE_ARGS ?=
FUZZ_ARGS ?=

# Compiled loops and the code around them, run a second time as plain Python.
NOJIT_TESTS := $(wildcard tests/test_permutahedron.py tests/test_kernels.py tests/test_losses.py)

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz lint format bench bench-scale bench-linear bench-cluster bench-first-use benchopt-test reproduce browser-test clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-plot ## Compare least squares with CVaR and ESRM, offline
	$(BIN)/sorel demo --out $(DEMO_OUT)

test: $(VENV)/.installed-dev ## Run the tests, the doctests, and some tests without compilation
	$(BIN)/python -m pytest --doctest-modules --doctest-ignore-import-errors --ignore tests/browser tests src/sorel $(PYTEST_ARGS)
ifneq ($(NOJIT_TESTS),)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -q $(NOJIT_TESTS)
endif

fuzz: $(VENV)/.installed-dev ## Solve random problems and check the answers from outside (FUZZ_ARGS="--count 10000 --seed 3")
	$(BIN)/python tests/fuzz.py $(FUZZ_ARGS)

lint: $(VENV)/.installed-dev ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## Apply the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench ## Time the solvers against L-BFGS
	$(BIN)/python -m benchmarks.compare $(BENCH_ARGS)

bench-scale: $(VENV)/.installed-bench ## Time and memory over rows, columns, disk and threads
	$(BIN)/python -m benchmarks.scaling $(BENCH_ARGS)

bench-linear: $(VENV)/.installed-bench ## Time quantile regression and portfolios against other libraries
	$(BIN)/python -m benchmarks.linear $(BENCH_ARGS)

bench-cluster: $(VENV)/.installed-dev ## Fits on a Dask cluster of two processes
	$(BIN)/python -m benchmarks.cluster $(BENCH_ARGS)

bench-first-use: $(VENV)/.installed-bench ## Time the first fits, before and after anything is compiled
	$(BIN)/python -m benchmarks.first_use $(BENCH_ARGS)

# benchopt runs pytest through a shell, by the name of its program: the environment goes first.
benchopt-test: $(VENV)/.installed-dev ## Check the benchopt benchmark, in this environment only
	PATH="$(abspath $(BIN)):$$PATH" SHELL=/bin/sh $(BIN)/benchopt test benchmarks/benchmark_spectral_risk \
		--skip-install --skip-env -q -p no:cacheprovider

reproduce: $(VENV)/.installed-bench ## Run the paper's experiments again (REPRODUCE_ARGS=--quick: five minutes)
	$(BIN)/sorel reproduce --out $(REPRODUCE_OUT) $(REPRODUCE_ARGS)

browser-test: $(VENV)/.installed-browser ## Check the HTML report in chromium (needs chromium and chromium-driver)
	$(BIN)/python -m pytest -q tests/browser

clean: ## Remove the environment, caches and outputs
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov $(DEMO_OUT) scaling-output
	rm -rf benchmarks/benchmark_spectral_risk/__cache__ benchmarks/benchmark_spectral_risk/outputs
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sorel needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
