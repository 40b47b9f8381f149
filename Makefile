# Two commands do everything: `make demo` and `make test`. Each makes the virtual environment .venv
# if there is none, installs what it needs (again only when pyproject.toml changed), and runs.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Nobody imports other packages' tests.
COMPILE := $(BIN)/python -W ignore -m compileall -qq -j $(JOBS) -x '/tests/'

GROUPS := lint test docs bench demo

# What a release of JAX can break: the readers of its programs, the contract of optimizers, and how
# arrays lie on meshes.
READERS := tests/programs tests/taps/test_capture.py tests/costs/test_cost_loops.py \
  tests/costs/test_cost_primitives.py tests/gradients/ghost/test_ghost_report.py \
  tests/gradients/ghost/test_ghost_factors.py tests/jacobians/dependence/test_dependence.py
CONTRACT := tests/contract/test_transforms.py
MESHES := tests/distributed/test_state_sharding.py
# Where the last digit decides: another CPU adds in another order, and has fused products or not.
ROUNDING := tests/reference tests/solvers tests/curves
# Formulas leaf by leaf, and fourteen small transforms one behind the other.
CASES := [adamw] or -adamw] or [lion] or -lion] or small_parts]
# What fits, optimizers, transforms and gradients compute: most of the time of all tests, and little
# of it is JAX's. The contract runs every transform, and README and the docstrings every function.
NUMBERS := $(addprefix tests/, solvers curves reference optimizers transforms gradients benchmarks \
  contract/test_solvers.py contract/test_solver_variants.py contract/test_derivatives.py)
# Everything public once: the examples of all docstrings and of README, and a few optimizers in full.
QUICK := fnopt tests/test_architecture.py tests/test_top_level.py tests/test_readme.py $(CONTRACT)

.PHONY: help install demo test test-quick rounding lint format types docs docs-quick bench bench-smoke oldest newest end dist clean \
  accelerator test-accelerator

help:
	@echo "make demo          train on real digits, fit a real curve, sweep 16 learning rates; writes a picture"
	@echo "make test          all tests and doctests"
	@echo "make test-quick    everything public once: the examples of docstrings and README"
	@echo "make rounding      the tests of fits as an older CPU computes them (ISA=SSE4_2, AVX or AVX2)"
	@echo "make oldest        what a JAX release can break, on the oldest one with Python 3.11"
	@echo "make newest        all tests but those of numbers, on the newest with 3.13"
	@echo "make lint types    ruff and pyright"
	@echo "make docs          the documentation, changed pages executed, warnings as errors"
	@echo "make docs-quick    the documentation without execution"
	@echo "make bench         every benchmark (bench-smoke: a quick run of the same code)"
	@echo "make accelerator test-accelerator   time and test what a GPU can change, with the JAX of PYTHON:"
	@echo "                   $(PYTHON) -m benchmarks.accelerator --out $(OUT); $(PYTHON) -m tests.accelerator -n 8"
	@echo "make dist          a wheel and a source distribution, checked, and tried in an empty environment"
	@echo "make clean         remove what these commands made, $(VENV) included"

# pip 25.1 is the first that installs dependency groups. The stamp comes last, so that an
# interrupted installation is taken up again.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "fnopt needs Python 3.11 or newer; this is %d.%d (try make PYTHON=python3.12)" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -qq --upgrade "pip>=25.1"
	@touch $@

# One stamp for each dependency group of pyproject.toml: .venv/.stamp-test and so on.
$(VENV)/.stamp-group-%: pyproject.toml | $(VENV)/.stamp-venv
	@echo "installing fnopt and its '$*' dependencies into $(VENV) ..."
	$(PIP) install -qq --no-compile --editable . --group $*
	@$(COMPILE) $(VENV)/lib || true
	@touch $@

# All groups at once: one resolution and one build of fnopt instead of five. Byte code is compiled on
# all cores, afterwards, because pip compiles on one.
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

# The two ends of the versions that fnopt supports, each in an environment of its own.
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

# For the two above, which say which tests (TESTS) and what to install for them (GROUP).
end: $(VENV)/.stamp-group-$(GROUP)
	@$(BIN)/python -c 'import jax, sys; print("Python %d.%d, JAX" % sys.version_info[:2], jax.__version__)'
	$(BIN)/python -m pytest -n $(JOBS) -q $(TESTS) -k "not test_transforms or $(CASES)"

lint: $(VENV)/.stamp-group-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/.stamp-group-lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The type checker reads the libraries that fnopt works with, so they have to be there.
types: $(VENV)/.stamp-group-lint $(VENV)/.stamp-group-test
	$(BIN)/pyright --pythonpath $(BIN)/python

# Outputs of executed pages are kept in docs/_build/executed until a page, fnopt or a package changes.
docs: $(VENV)/.stamp-group-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q -j $(JOBS) -b html docs docs/_build/html
	$(BIN)/python -m tests.docs_search docs/_build/html
	@echo "docs/_build/html/index.html"

# Pages without their outputs: for text, references and docstrings.
docs-quick: $(VENV)/.stamp-group-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q -j $(JOBS) -D nb_execution_mode=off -b html docs docs/_build/quick
	@echo "docs/_build/quick/index.html"

bench: $(VENV)/.stamp-group-bench
	$(BIN)/python -m benchmarks --json benchmarks/results/latest.json

bench-smoke: $(VENV)/.stamp-group-bench
	$(BIN)/python -m benchmarks --smoke --jobs $(JOBS)
	$(BIN)/python -m benchmarks.accelerator --smoke --again --out benchmarks/results/smoke

# With the JAX of $(PYTHON), which sees the accelerator; the one in $(VENV) is for CPUs.
OUT ?= benchmarks/results
accelerator:
	$(PYTHON) -m benchmarks.accelerator --out $(OUT)

test-accelerator:
	$(PYTHON) -m tests.accelerator

# README's first example runs where nothing but the wheel is installed, and not from this folder.
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
