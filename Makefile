# `make demo` and `make test` do all the set-up: a virtual environment in .venv with the versions of
# constraints.txt, made once and renewed when pyproject.toml or constraints.txt change.

PYTHON ?= python3
BIN := .venv/bin
# Tests at once; each runs kernels and compilers of its own.
JOBS ?= 2

.PHONY: demo test check test-fast test-compile test-gpu test-gpu-stand-in clean
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
	$(BIN)/python -m pytest -W error -n $(JOBS) -m "not compile and not faults and not gpu"

test-compile: .venv/installed
	$(BIN)/python -m pytest -W error -n $(JOBS) -m "(compile or faults) and not gpu" --durations=10

# On a machine with an NVIDIA GPU, where pip finds torch's build for CUDA.
test-gpu: .venv/installed
	$(BIN)/python -m pytest -W error -n $(JOBS) -m gpu --durations=10

# On one without: everything but the card is real, and results are not looked at. Downloads some 3 GB.
test-gpu-stand-in: .venv-cuda/installed
	.venv-cuda/bin/python tests/gpu/stand_in/run.py .venv-cuda/bin/python -m pytest -W error -n $(JOBS) -m gpu

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbcache needs Python 3.11 or newer; name one with make PYTHON=...")'
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h") and "torch.compile needs the Python headers; on Debian: apt install python3-dev")'
	@command -v $${CXX:-g++} >/dev/null || { echo "torch.compile needs a C++ compiler; on Debian: apt install g++" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

.venv-cuda/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --disable-pip-version-check --quiet --isolated \
		--index-url https://pypi.org/simple --constraint constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv .venv-cuda build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
