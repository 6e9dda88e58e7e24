# `make demo` and `make test` are all a fresh machine with Python >= 3.11 needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev

.DEFAULT_GOAL := help
.PHONY: help demo test fast lint types docs bench clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "graphkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): $(READY) pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev,models]'
	@touch $@

demo: $(READY) ## fetch a real model, optimize, convert to MNN, verify
	@$(BIN)/python examples/demo.py

test: $(DEV) lint types ## all checks and all tests, as CI runs them
	$(BIN)/python -m pytest -n 2 --dist loadgroup

fast: $(DEV) ## tests that need neither downloads nor torch
	$(BIN)/python -m pytest -n 2 -m 'not model and not torch'

lint: $(DEV) ## format and style (ruff), layers (import-linter)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(DEV) ## mypy, strict
	$(BIN)/mypy

docs: $(DEV) ## run every block of the README and docs
	$(BIN)/python -m pytest tests/test_docs.py

bench: $(DEV) ## us and the peers side by side (minutes); writes benchmarks/results
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/optimize.py

clean: ## remove the venv and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
