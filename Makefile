# `make demo` and `make test` are all a fresh machine with Python >= 3.11 needs; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# setuptools warns at length about every editable install
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
MODELS := $(VENV)/.models

.DEFAULT_GOAL := help
.PHONY: help demo test fast lint types docs bench conformance operators clean

STEP := 1

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "graphkit needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) --editable .
	@touch $@

$(DEV): $(READY)
	$(PIP) --editable '.[dev]'
	@touch $@

$(MODELS): $(DEV)
	$(PIP) --editable '.[models]'
	@touch $@

demo: $(READY) ## fetch a real model, optimize, convert to MNN, verify
	@$(BIN)/python examples/demo.py

test: $(MODELS) lint types ## all checks and all tests, as CI runs them
	$(BIN)/python -m pytest -n 2 --dist loadgroup

fast: $(DEV) ## tests that need neither downloads nor torch
	$(BIN)/python -m pytest -n 2 -m 'not model and not torch'

lint: $(DEV) ## format and style (ruff), layers (import-linter)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(MODELS) ## mypy, strict
	$(BIN)/mypy

docs: $(MODELS) ## run every block of the README and docs
	$(BIN)/python -m pytest tests/test_docs.py

bench: $(MODELS) ## us and the peers side by side (an hour); writes benchmarks/results
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/optimize.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/encoder.py --output benchmarks/results/encoder.md
	$(BIN)/python benchmarks/mnn_json.py
	$(BIN)/python benchmarks/quant_speed.py
	$(BIN)/python benchmarks/quant_peers.py
	$(BIN)/python benchmarks/quant_minilm.py
	$(BIN)/python benchmarks/quant_vision.py
	$(BIN)/python benchmarks/bisection.py
	$(BIN)/python benchmarks/planted.py

conformance: $(DEV) ## ONNX's backend tests through MNN (12 minutes; STEP=20: a sample); writes docs/conformance.md
	$(BIN)/python -m conformance --road plain --road graphkit --road check --step $(STEP) --strict $(if $(filter 1,$(STEP)),--publish)

operators: $(DEV) ## make the table of operators anew from verdicts.json (MODELS_RIGHT=… more good nodes)
	$(BIN)/python -m conformance.operators $(foreach model,$(MODELS_RIGHT),--right $(model))

clean: ## remove the venv and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
