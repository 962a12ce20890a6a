# `make demo` and `make test` first create a virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
EXTRAS := $(VENV)/.extras
FUZZERS := tests/cli/test_fuzz.py tests/cli/test_fuzz_results.py tests/cli/test_kills.py \
	tests/cli/test_checkpoint_kills.py tests/data/test_fuzz_files.py \
	tests/test_fuzz_calls.py tests/test_io.py tests/test_checksum.py tests/training/test_learner_state.py \
	tests/training/test_undo.py
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test coverage fuzz lint bench clean

# torch first and pinned, so that all machines test the same version. On Linux the default package
# index has only the build with CUDA, several gigabytes. For the CPU build, give the index that
# pytorch.org names for it: make test TORCH_INDEX=https://…/whl/cpu
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "$(TORCH)"
	$(BIN)/pip install -q -e ".[dev]"
	touch $@

# what the tests of optional features need: `test-extras` in pyproject.toml has one line for each.
# A package that cannot be installed, or that needs another torch, stops here.
$(EXTRAS): $(STAMP)
	$(BIN)/pip install -q -e ".[test-extras]" "$(TORCH)"
	touch $@

demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/dualcba run --out runs/demo

test: $(EXTRAS) lint
	DUALCBA_EXTRAS=all $(BIN)/python -m pytest -n 2 --dist worksteal

# the same tests, slower, and how much of the package they run
coverage: $(EXTRAS)
	DUALCBA_EXTRAS=all $(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term --cov-fail-under=90

# `make test` runs a sample of each fuzzer; this runs all of them in full
fuzz: $(STAMP)
	DUALCBA_FUZZ=full $(BIN)/python -m pytest -n 2 $(FUZZERS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/dualcba bench

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .coverage
