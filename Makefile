# `make help` lists the commands. A command creates the virtual environment .venv if it doesn't exist
# and installs the packages that the command needs; it installs again if pyproject.toml changed.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Compiling the tests of other packages would take time, and no command imports these tests.
COMPILE := $(BIN)/python -W ignore -m compileall -qq -j $(JOBS) -x '/tests/'

GROUPS := lint test docs bench demo

# Tests that a new release of JAX is likely to break: the code that reads jaxprs (READERS), the
# contract of optimizers (CONTRACT), and the sharding of states (MESHES).
READERS := tests/programs tests/taps/test_capture.py tests/costs/test_cost_loops.py \
  tests/costs/test_cost_primitives.py tests/gradients/ghost/test_ghost_report.py \
  tests/gradients/ghost/test_ghost_factors.py tests/jacobians/dependence/test_dependence.py
CONTRACT := tests/contract/test_transforms.py
MESHES := tests/distributed/test_state_sharding.py
# Tests whose results depend on rounding errors. Another CPU sums in another order, and may use fused
# multiply-adds.
ROUNDING := tests/reference tests/solvers tests/curves
# A subset of the contract tests, as a `-k` expression: three leaf-wise cases, and a chain of fourteen
# small transforms.
CASES := [adamw] or -adamw] or [lion] or -lion] or small_parts]
# Tests of numerical results, which `make newest` omits: these tests take most of the time, and few of
# them depend on the version of JAX. The contract tests still run every transform, and the examples of
# README and the docstrings still run every function.
NUMBERS := $(addprefix tests/, solvers curves reference optimizers transforms gradients benchmarks \
  contract/test_solvers.py contract/test_solver_variants.py contract/test_derivatives.py)
# Quick tests: the examples of all docstrings and of README, and the contract tests of a few optimizers.
QUICK := fnopt tests/test_architecture.py tests/test_top_level.py tests/test_readme.py $(CONTRACT)

.PHONY: help install demo test test-quick rounding lint format types docs docs-quick bench bench-smoke oldest newest end dist clean \
  accelerator test-accelerator

help:
	@echo "make demo          train on real digits, fit a real curve, sweep 16 learning rates; write a picture"
	@echo "make test          run all tests and doctests"
	@echo "make test-quick    run the examples of all docstrings and of README, and some of the tests"
	@echo "make rounding      run the tests of fits with the instruction set of an older CPU (ISA=SSE4_2, AVX or AVX2)"
	@echo "make oldest        run the tests that depend on JAX, with the oldest JAX and Python 3.11"
	@echo "make newest        run all tests except tests of numerical results, with the newest JAX and Python 3.13"
	@echo "make lint types    run ruff and pyright"
	@echo "make format        apply the formatter and the automatic corrections of ruff"
	@echo "make docs          build the documentation: execute changed pages; warnings are errors"
	@echo "make docs-quick    build the documentation without executing pages"
	@echo "make bench         run all benchmarks (bench-smoke: a quick run of the same code)"
	@echo "make accelerator test-accelerator   measure and test on a GPU, with the JAX of PYTHON:"
	@echo "                   $(PYTHON) -m benchmarks.accelerator --out $(OUT); $(PYTHON) -m tests.accelerator"
	@echo "make dist          build and check a wheel and a source distribution; run an example in an empty environment"
	@echo "make clean         delete all files that these commands created, including $(VENV)"

# pip 25.1 is the first version that installs dependency groups. The stamp file is written last, so an
# interrupted installation runs again.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "fnopt needs Python 3.11 or newer; this is %d.%d (try make PYTHON=python3.12)" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -qq --upgrade "pip>=25.1"
	@touch $@

# Each dependency group of pyproject.toml has a stamp file, such as .venv/.stamp-group-test.
$(VENV)/.stamp-group-%: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing fnopt and its '$*' dependencies into $(VENV) ..."
	$(PIP) install -qq --no-compile --editable . --group $*
	@$(COMPILE) $(VENV)/lib || true
	@touch $@

# Install all groups at once, which resolves dependencies and builds fnopt once instead of five times.
# `--no-compile`: pip compiles byte code on one core, COMPILE on all cores.
$(VENV)/.stamp-all: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing fnopt and all its dependencies into $(VENV) ..."
	$(PIP) install -qq --no-compile --editable . $(GROUPS:%=--group %)
	@$(COMPILE) $(VENV)/lib || true
	@touch $(GROUPS:%=$(VENV)/.stamp-group-%) $@

install: $(VENV)/.stamp-all

demo: $(VENV)/.stamp-group-demo
	$(BIN)/python docs/demo/digits_and_curve.py

test: $(VENV)/.stamp-group-test
	$(BIN)/python -m pytest -n $(JOBS) -q --durations=10

test-quick: $(VENV)/.stamp-group-test
	$(BIN)/python -m pytest -n $(JOBS) -q $(QUICK) -k "not test_transforms or $(CASES)"

ISA ?= SSE4_2
rounding: $(VENV)/.stamp-group-test
	XLA_FLAGS=--xla_cpu_max_isa=$(ISA) $(BIN)/python -m pytest -n $(JOBS) -q $(ROUNDING)

# The oldest and the newest supported versions, each in a separate virtual environment.
oldest: export PIP_CONSTRAINT := tests/oldest.txt
$(VENV)/.stamp-group-ends: tests/oldest.txt
oldest:
	@python=$$(.ci/find-python 3.11) || { echo "no Python 3.11 was found"; exit 1; }; \
	$(MAKE) --no-print-directory end VENV=$(VENV)-oldest PYTHON="$$python" \
	  GROUP=ends TESTS="$(READERS) $(CONTRACT) $(MESHES)"

newest:
	@python=$$(.ci/find-python 3.13) || { echo "no Python 3.13 was found"; exit 1; }; \
	$(MAKE) --no-print-directory end VENV=$(VENV)-newest PYTHON="$$python" \
	  GROUP=test TESTS="tests $(NUMBERS:%=--ignore=%)"
	$(VENV)-newest/bin/python -W ignore -m tests.run_page docs/guides/cost.md

# Shared by `oldest` and `newest`, which pass the tests (TESTS) and the dependency group (GROUP).
end: $(VENV)/.stamp-group-$(GROUP)
	@$(BIN)/python -c 'import jax, sys; print("Python %d.%d, JAX" % sys.version_info[:2], jax.__version__)'
	$(BIN)/python -m pytest -n $(JOBS) -q $(TESTS) -k "not test_transforms or $(CASES)"

lint: $(VENV)/.stamp-group-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.stamp-group-lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# pyright reads the types of other libraries, such as flax, so the group `test` must be installed.
types: $(VENV)/.stamp-group-lint $(VENV)/.stamp-group-test
	$(BIN)/pyright --pythonpath $(BIN)/python

# docs/_build/executed caches the outputs of executed pages until the page, fnopt or a package changes.
docs: $(VENV)/.stamp-group-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q -j $(JOBS) -b html docs docs/_build/html
	$(BIN)/python -m tests.docs_search docs/_build/html
	@echo "docs/_build/html/index.html"

# Without the outputs of code cells: checks text, references and docstrings.
docs-quick: $(VENV)/.stamp-group-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q -j $(JOBS) -D nb_execution_mode=off -b html docs docs/_build/quick
	@echo "docs/_build/quick/index.html"

bench: $(VENV)/.stamp-group-bench
	$(BIN)/python -m benchmarks --json benchmarks/results/latest.json

bench-smoke: $(VENV)/.stamp-group-bench
	$(BIN)/python -m benchmarks --smoke --jobs $(JOBS)
	$(BIN)/python -m benchmarks.accelerator --smoke --again --out benchmarks/results/smoke

# Use the JAX of $(PYTHON), which supports the accelerator; the JAX in $(VENV) is for CPUs.
OUT ?= benchmarks/results
accelerator:
	$(PYTHON) -m benchmarks.accelerator --out $(OUT)

test-accelerator:
	$(PYTHON) -m tests.accelerator

# Run README's first example in an environment with only the wheel and its dependencies. The example
# runs in dist/, because Python would import fnopt from this folder instead of the wheel.
dist: $(VENV)/.stamp-group-dist
	rm -rf dist $(VENV)-dist
	$(BIN)/python -m build -q --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.built dist
	$(BIN)/python -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install -qq --no-compile --disable-pip-version-check dist/*.whl
	sed -n '/^```python$$/,/^```$$/p;/^```$$/q' README.md | sed '/^```/d' > dist/first_example.py
	cd dist && ../$(VENV)-dist/bin/python first_example.py
	rm dist/first_example.py

clean:
	rm -rf $(VENV) $(VENV)-dist $(VENV)-oldest $(VENV)-newest docs/_build demo_output benchmarks/results build dist
