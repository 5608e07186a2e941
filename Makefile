# `make demo` and `make test` do all the set-up: a virtual environment in .venv with the versions of
# constraints.txt, made once and renewed when pyproject.toml or constraints.txt change, or another Python is
# asked for: `make test PYTHON=python3.12`. Where packages come from is pip's own configuration
# (`pip config list`).

PYTHON ?= python3
# Another torch than that of constraints.txt, in an environment of its own: `make test-torch TORCH=2.15.0`.
TORCH :=
VENV := .venv$(TORCH:%=-torch-%)
BIN := $(VENV)/bin
# Tests at once; each runs kernels and compilers of its own.
JOBS ?= $(shell nproc)
# pytest rewrites the assertions of all tests: once, not in each worker of each run.
unexport PYTHONDONTWRITEBYTECODE
# Tests of one group share fixtures that are dear to make: one worker runs them.
PYTEST = -m pytest -W error -n $(JOBS) --dist loadgroup

.PHONY: demo bench docs pictures test test-all check test-fast test-compile test-browser test-torch test-gpu test-gpu-stand-in clean FORCE
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/python notebooks/demo.py

# The figures of docs/benchmark.md: `make bench ARGS="nanogpt --runs 5"`; `make bench ARGS=--help` lists the arguments.
bench: $(VENV)/installed
	$(BIN)/python -m benchmarks $(ARGS)

# docs/ as a web site, in build/docs; a broken link fails.
docs: $(VENV)/installed
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(VENV)/constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --site-dir build/docs

# The pictures of the panel in docs, from JupyterLab in Chromium.
pictures: $(VENV)/installed
	$(BIN)/python docs/images/panel.py

# The one gate, here and in CI. What fails fast runs first.
test: check test-fast test-compile test-browser

# The same, and what takes minutes: demo, tour, the benchmark's kernels, rows of the soundness table, what
# each hook does on a torch that calls it otherwise. For a release.
test-all: test
	$(BIN)/python $(PYTEST) -m "proof and not gpu" --durations=10

check: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict nbcache benchmarks
	$(BIN)/lint-imports
	$(BIN)/python tests/plain_english.py

test-fast: $(VENV)/installed
	@mkdir -p build
	$(BIN)/python $(PYTEST) -m "not (compile or faults or proof or gpu or browser)" --cov --cov-report=
	@echo "These tests run $$($(BIN)/coverage report --format=total) % of the product's lines in their own processes."

test-compile: $(VENV)/installed
	$(BIN)/python $(PYTEST) -m "(compile or faults) and not (proof or gpu)" --durations=10

# Panels in JupyterLab and Notebook. Without Chromium it says what was not run, and fails where CI is set.
test-browser: $(VENV)/installed
	$(BIN)/python $(PYTEST) -m browser --durations=10

# All of `make test-all` on another torch. Most builds that pip finds are for CUDA: some 3 GB to download.
test-torch:
	@test -n "$(TORCH)" || { echo "which torch? make test-torch TORCH=2.15.0" >&2; exit 1; }
	$(MAKE) test-all TORCH=$(TORCH)

# On a machine with an NVIDIA GPU, where pip finds torch's build for CUDA.
test-gpu: $(VENV)/installed
	@$(BIN)/python tests/gpu/built_for_cuda.py
	$(BIN)/python $(PYTEST) -m gpu --durations=10

# On one without: everything but the card is real, and results are not looked at. Downloads some 3 GB.
test-gpu-stand-in: .venv-cuda/installed
	.venv-cuda/bin/python tests/gpu/stand_in/run.py .venv-cuda/bin/python $(PYTEST) -m gpu

$(VENV)/installed: pyproject.toml constraints.txt $(VENV)/made-with
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbcache needs Python 3.11 or newer; name one with make PYTHON=...")'
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h") and "torch.compile needs the Python headers; on Debian: apt install python3-dev")'
	@command -v $${CXX:-g++} >/dev/null || { echo "torch.compile needs a C++ compiler; on Debian: apt install g++" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	sed '$(TORCH:%=s/^torch==.*/torch==%/)' constraints.txt >$(VENV)/constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(VENV)/constraints.txt --editable '.[dev]'
	@touch $@

# Which Python the environment is for. For another one, it begins anew.
$(VENV)/made-with: FORCE
	@made_with="$$($(PYTHON) -c 'import sys; print(sys.version, sys.base_prefix)')" || exit 1; \
	test "$$made_with" = "$$(cat $@ 2>/dev/null)" || { rm -rf $(VENV); mkdir $(VENV); echo "$$made_with" >$@; }

.venv-cuda/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[test]'
	@.venv-cuda/bin/python tests/gpu/built_for_cuda.py
	@touch $@

clean:
	rm -rf .venv .venv-cuda .venv-torch-* build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
