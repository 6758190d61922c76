# Every target works from a bare checkout: it creates .venv with $(PYTHON) and installs what it needs.
# Override on the command line, e.g. `make test PYTHON=python3.12 PYTEST_ARGS="-x -k risks"`.
# What is installed has the versions of constraints.txt; CONSTRAINTS= takes the newest instead.
# WHEEL=dist/sorel-....whl installs that wheel in place of the checkout, and compiles nothing.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
WHEEL ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
BASE ?= HEAD~1
DEMO_OUT ?= demo-output
REPRODUCE_OUT ?= sorel-reproduction
REPRODUCE_ARGS ?=
FUZZ_ARGS ?=
TORTURE_ARGS ?=
MUTANTS_ARGS ?=
MATRIX_ARGS ?=
GALLERY_ARGS ?=

# Torch has an environment of its own: a CPU build unless TORCH says otherwise. Targets for a device
# run in an environment that has a CUDA build of torch, and what sorel needs.
TORCH ?= torch==2.13.0
TORCH_VENV ?= $(VENV)-torch
GPU_PYTHON ?= python3

# The tests of the compiled code, which `make sanitize` runs.
CORE_TESTS := $(addprefix tests/test_,kernels.py engines.py sparse.py sparse_steps.py permutahedron.py epochs.py)

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch test-gpu test-gallery sanitize fuzz torture mutants lint format bench bench-head bench-scale bench-map bench-linear bench-rivals bench-cluster bench-networks bench-gpu bench-held-out bench-first-use benchopt-test reproduce browser-test docs test-docs dist test-matrix lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-plot ## Compare least squares with CVaR and ESRM, offline
	$(BIN)/sorel demo --out $(DEMO_OUT)

test: $(VENV)/.installed-dev ## Run the tests and the doctests
	$(BIN)/python -m pytest -n auto --dist loadfile --doctest-modules --doctest-ignore-import-errors --ignore tests/browser --ignore tests/tensors --ignore tests/site --ignore tests/gallery --pyargs ./tests sorel $(PYTEST_ARGS)

# The module with the sanitizers in it is loaded into an interpreter that knows nothing of them.
SANITIZED := build/sanitized
sanitize: $(VENV)/.installed-dev ## Run the compiled loops under the address and undefined-behaviour sanitizers
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation --no-deps --upgrade --target $(SANITIZED)/site . \
		--config-settings=cmake.define.SOREL_SANITIZE=ON --config-settings=build-dir=$(SANITIZED)/build
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 $(BIN)/python tests/run_on.py $(SANITIZED)/site -q -p no:cacheprovider $(CORE_TESTS)

test-torch: $(TORCH_VENV)/.installed ## Run the tests of tensors, on torch's CPU device, in an environment of their own
	$(TORCH_VENV)/bin/python -m pytest -q --doctest-modules --pyargs ./tests/tensors sorel.torch sorel.engines.tensors sorel._lib.devices $(PYTEST_ARGS)
	$(TORCH_VENV)/bin/python -m pytest -q tests/test_docs.py -k sorel.torch

test-gpu: ## Run the tests of tensors on a CUDA device (GPU_PYTHON: a python with torch)
	SOREL_TEST_DEVICE=cuda PYTHONPATH="src:$$PYTHONPATH" $(GPU_PYTHON) -m pytest -q tests/tensors $(PYTEST_ARGS)

test-gallery: $(VENV)/.installed-docs ## Run the examples and check their numbers (GALLERY_ARGS="-m quick": three of them)
	$(BIN)/python -m pytest -q tests/gallery $(GALLERY_ARGS)

fuzz: $(VENV)/.installed-dev ## Solve random problems and check the answers from outside (FUZZ_ARGS="--seed 3 --count 10000")
	$(BIN)/python tests/fuzz.py $(FUZZ_ARGS)

torture: $(VENV)/.installed-dev ## Kill, starve and mislead the commands, and look at what they do (TORTURE_ARGS="--rounds 50")
	$(BIN)/python tests/torture.py --hostile $(TORTURE_ARGS)

mutants: $(VENV)/.installed-dev ## Change operators one at a time, and print what the tests do not notice (MUTANTS_ARGS="--count 20")
	$(BIN)/python tests/mutants.py $(MUTANTS_ARGS)

lint: $(VENV)/.installed-dev ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(VENV)/.installed-dev ## Apply the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench ## Time the solvers against L-BFGS, and fits, sparse ones and paths against scikit-learn's
	$(BIN)/python -m benchmarks.compare $(BENCH_ARGS)
ifeq ($(filter --only,$(BENCH_ARGS)),)
	for part in columns classes elastic_net paths; do \
		echo; echo "benchmarks.$$part:"; $(BIN)/python -m benchmarks.$$part $(filter --quick,$(BENCH_ARGS)) || exit 1; done
endif

bench-head: $(VENV)/.installed-bench ## Time this checkout against another commit, in turn (BASE=main~5)
	$(BIN)/python -m benchmarks.head --base $(BASE) $(BENCH_ARGS)

bench-scale: $(VENV)/.installed-bench ## Time and memory over rows, columns, disk and threads
	$(BIN)/python -m benchmarks.scaling $(BENCH_ARGS)

bench-map: $(VENV)/.installed-bench ## Which solver is first where, and what auto loses (an hour; BENCH_ARGS=--quick: a minute)
	$(BIN)/python -m benchmarks.regime_map $(BENCH_ARGS)

bench-linear: $(VENV)/.installed-bench ## Time quantile regression and portfolios against other libraries
	$(BIN)/python -m benchmarks.linear $(BENCH_ARGS)

bench-rivals: $(VENV)/.installed-rivals ## Time outside codes, and see which solve the right problem (BENCH_ARGS=--quick: some minutes)
	$(BIN)/python -m benchmarks.rivals $(BENCH_ARGS)

bench-cluster: $(VENV)/.installed-dev ## Fits on a Dask cluster of two processes
	$(BIN)/python -m benchmarks.cluster $(BENCH_ARGS)

bench-held-out: $(VENV)/.installed-bench ## Print every number of docs/choosing-a-risk.md and its neighbours (an hour; BENCH_ARGS=--update-docs writes them there)
	for part in held_out goal estimated tail_coverage; do $(BIN)/python -m benchmarks.$$part $(BENCH_ARGS) || exit 1; done

bench-first-use: $(VENV)/.installed-bench ## Time the first fits in new processes
	$(BIN)/python -m benchmarks.first_use $(BENCH_ARGS)

bench-networks: $(VENV)/.installed-plot $(VENV)/.installed-torch ## Train small networks on tail risks (long; BENCH_ARGS=--quick: a minute or two)
	$(BIN)/python -m benchmarks.networks $(BENCH_ARGS)

bench-gpu: ## Time fits and projections on a CUDA device, and against the cores (GPU_PYTHON: a python with torch)
	PYTHONPATH="src:$$PYTHONPATH" $(GPU_PYTHON) -m benchmarks.gpu $(BENCH_ARGS)

# benchopt runs pytest through a shell, by the name of its program: the environment goes first.
benchopt-test: $(VENV)/.installed-dev ## Check the benchopt benchmark, in this environment only
	PATH="$(abspath $(BIN)):$$PATH" SHELL=/bin/sh $(BIN)/benchopt test benchmarks/benchmark_spectral_risk \
		--skip-install --skip-env -q -p no:cacheprovider

reproduce: $(VENV)/.installed-bench ## Run the paper's experiments again (REPRODUCE_ARGS=--quick: five minutes)
	$(BIN)/sorel reproduce --out $(REPRODUCE_OUT) $(REPRODUCE_ARGS)

# The gallery runs when the site is built; SOREL_DOCS_EXAMPLES=none leaves it out, in a minute less.
docs: $(VENV)/.installed-docs ## Build the site into docs/_build/html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "the site is in docs/_build/html/index.html"

test-docs: $(VENV)/.installed-docs $(VENV)/.installed-browser docs ## Check the site: links, and a browser (needs chromium and chromium-driver)
	$(BIN)/python -m pytest -q tests/site $(PYTEST_ARGS)

# What `make test` has compiled is linked once more; the release builds its wheels from the source distribution.
# Every tool of the build is checked against its hash, and the list of them (CycloneDX) lies beside what they made.
dist: $(VENV)/.installed-hashed ## Build and check the wheel and the source distribution, list what built them; run the README from the wheel
	rm -rf dist
	$(BIN)/python -m build --no-isolation --sdist --wheel --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/auditwheel show dist/*.whl
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file "$$(ls dist/*.tar.gz | sed 's/\.tar\.gz$$/.cdx.json/')" $(BIN)/python
	$(PYTHON) -m venv --clear dist/venv
	dist/venv/bin/python $(PIP_INSTALL) pandas dist/*.whl
	cd dist && venv/bin/python -m doctest -o NORMALIZE_WHITESPACE ../README.md
	rm -rf dist/venv

lock: $(BIN)/python ## Write constraints.txt anew, the newest versions of all tools, and constraints-release.txt with hashes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	printf '%s\n' $(BUILD_TOOLS) | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-annotate \
		--custom-compile-command "make lock" --extra dev --extra docs --extra browser --extra release \
		--output-file constraints.txt pyproject.toml -
	printf '%s\n' $(BUILD_TOOLS) | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate \
		--custom-compile-command "make lock" --extra release --generate-hashes --constraint constraints.txt \
		--output-file constraints-release.txt pyproject.toml -

test-matrix: ## Run the tests on every Python at hand and on the oldest dependencies (MATRIX_ARGS="--only 3.12")
	$(PYTHON) tests/matrix.py --constraints "$(CONSTRAINTS)" $(MATRIX_ARGS)

browser-test: $(VENV)/.installed-browser ## Check the HTML report in chromium (needs chromium and chromium-driver)
	$(BIN)/python -m pytest -q tests/browser

clean: ## Remove the environment, caches and outputs
	rm -rf $(VENV) $(TORCH_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov $(DEMO_OUT) scaling-output fuzz-output networks-output
	rm -rf docs/_build docs/gallery docs/api/generated
	rm -rf benchmarks/benchmark_spectral_risk/__cache__ benchmarks/benchmark_spectral_risk/outputs
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The tools of the build are installed beside the package, so that a second build finds what the first
# one compiled; the module itself lies in src/sorel.
BUILD_TOOLS := "scikit-build-core>=0.11" "nanobind>=2.4" "numpy>=2.0" "cmake>=3.18" "ninja>=1.11"
CORE := CMakeLists.txt $(wildcard src/core/*.cpp src/core/*.hpp)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check $(addprefix --constraint ,$(CONSTRAINTS))
EDITABLE := $(if $(WHEEL),,--no-build-isolation --editable)
SOURCE := $(or $(WHEEL),.)

$(VENV)/.installed-%: pyproject.toml constraints.txt $(CORE) | $(BIN)/python
	$(BIN)/python $(PIP_INSTALL) $(BUILD_TOOLS)
	$(BIN)/python $(PIP_INSTALL) $(EDITABLE) "$(SOURCE)[$*]"
	touch $@

# The tools of `make dist`, each file checked against its hash.
$(VENV)/.installed-hashed: constraints-release.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement constraints-release.txt
	touch $@

# The pin of torch goes first: what follows takes the version that is there.
$(TORCH_VENV)/.installed: pyproject.toml constraints.txt $(CORE)
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python $(PIP_INSTALL) "$(TORCH)" $(BUILD_TOOLS)
	$(TORCH_VENV)/bin/python $(PIP_INSTALL) $(EDITABLE) "$(SOURCE)[test-torch]"
	touch $@

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sorel needs Python 3.11 or newer; set PYTHON=...")'
	@command -v $${CXX:-c++} >/dev/null || { echo "sorel needs a C++ compiler: install g++ or clang, or set CXX=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
