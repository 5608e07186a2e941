# `make demo` and `make test` do all the set-up: a virtual environment in .venv with the versions of
# constraints.txt, made once and renewed when pyproject.toml or constraints.txt change.

PYTHON ?= python3
BIN := .venv/bin
# Tests at once; each runs kernels and compilers of its own.
JOBS ?= 2

.PHONY: demo test check test-fast test-compile clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/python notebooks/demo.py

# The one gate, here and in CI. What fails fast runs first.
test: check test-fast test-compile

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict nbcache
	$(BIN)/lint-imports

test-fast: .venv/installed
	$(BIN)/python -m pytest -W error -n $(JOBS) -m "not compile and not faults"

test-compile: .venv/installed
	$(BIN)/python -m pytest -W error -n $(JOBS) -m "compile or faults" --durations=10

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbcache needs Python 3.11 or newer; name one with make PYTHON=...")'
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h") and "torch.compile needs the Python headers; on Debian: apt install python3-dev")'
	@command -v $${CXX:-g++} >/dev/null || { echo "torch.compile needs a C++ compiler; on Debian: apt install g++" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
