# Two commands for a user (make bench, make test) and five for a developer (make native, make lint, make proof,
# make mutation, make clean).
# They make their own environment in $(VENV) and keep it while it is up to date.  Everything comes from the package index
# that pip is configured for.  Override PYTHON to choose an interpreter, PIP to choose an installer.
PYTHON ?= python3
PY ?= $(PYTHON)
VENV ?= .venv
BIN := $(VENV)/bin
PIP ?= $(BIN)/python -m pip --disable-pip-version-check -q
OUT ?= out.json
PYTEST_ARGS ?=

NATIVE := pyproject.toml CMakeLists.txt $(wildcard amk_core/native/*)
SOURCES := $(NATIVE) $(shell find amk_core amk_bench vm kernels suites fleet -name '*.py' -o -name '*.h' -o -name '*.cu*' -o -name '*.toml')
# The requirements of one extra, one a line.
EXTRA = $(BIN)/python -c 'import sys, tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]]))'

.PHONY: help bench test native lint proof mutation env clean
help:
	@echo 'make bench   measure this machine: installs, fetches a model, runs the suites, prints the table'
	@echo 'make test    tests of the packages and the default validator suite'
	@echo 'make native  build the extension in place, for running from the source tree'
	@echo 'make lint    ruff and mypy --strict'
	@echo 'make proof   compile the theory in proofs/ (needs Coq) and check that no theorem rests on an axiom'
	@echo 'make mutation   change every place of the validator and its checkers once, and see whether anything notices (long)'
	@echo 'make clean   remove the environment and everything built'

bench: env
	@echo '== the model: SmolLM2-135M (kept in the model cache)'
	$(BIN)/amk model fetch smollm2-135m
	@echo '== the suites, quick: gates first, then paired timing'
	$(BIN)/pytest suites --arch=auto --quick --benchmark-json=$(OUT) $(PYTEST_ARGS)

test: env
	$(BIN)/pytest tests suites/validator -n logical --dist loadfile $(PYTEST_ARGS)

env: $(VENV)/.amk

# The first time, and when pyproject.toml has changed: exactly what a user types.  After other changes: rebuild without isolation,
# so that only what changed is compiled.
$(VENV)/.amk: $(SOURCES)
	@if [ ! -f $(VENV)/.deps ] || [ pyproject.toml -nt $(VENV)/.deps ]; then \
	  echo '== the environment in $(VENV), about a minute the first time'; set -ex; \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(PIP) install '.[test]'; \
	  touch $(VENV)/.deps; \
	else \
	  echo '== amk itself'; set -e; \
	  $(EXTRA) build > $(VENV)/build.txt; \
	  $(PIP) install -r $(VENV)/build.txt; \
	  PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --no-deps --no-build-isolation --config-settings build-dir=build/venv .; \
	fi
	@touch $@

$(VENV)/.lint: $(VENV)/.amk
	$(EXTRA) lint > $(VENV)/lint.txt
	$(PIP) install -r $(VENV)/lint.txt
	touch $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

# The interpreter $(PY) needs nanobind; the extension is built beside amk_core/__init__.py.
native:
	cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$$($(PY) -c 'import sys;print(sys.executable)') -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/amk_core >/dev/null
	cmake --build build/dev

proof:
	@$(MAKE) --no-print-directory -C proofs

mutation: $(VENV)/.amk
	$(EXTRA) mutation > $(VENV)/mutation.txt
	$(PIP) install -r $(VENV)/mutation.txt
	for what in reference checker validator; do $(BIN)/python -m amk_bench.mutation.run $$what || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks amk_core/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
