# Entry points for people and CI. Downloads and builds are cached outside the repository.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE ?= $(or $(LORAFLEET_CACHE),$(HOME)/.cache/lorafleet)
export LORAFLEET_CACHE := $(CACHE)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PACKAGES := contracts kube operator gateway engine
CHECKED := tests/architecture tests/contracts/test_crd.py
PURE_TESTS := tests/operator/core tests/gateway/core tests/engine/scheduler tests/engine/memory
PURE := operator/lorafleet_operator/core gateway/lorafleet_gateway/core engine/lorafleet_engine/scheduler engine/lorafleet_engine/memory
export PYTHONPATH := $(subst $(eval) ,:,$(PACKAGES:%=$(CURDIR)/%))
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes: compiling torch and transformers anew costs each seconds
WORKERS ?= 2
BESIDE := -n $(WORKERS) --dist worksteal

include $(wildcard e2e/*/*.mk gateway/*.mk)

.PHONY: help setup check fmt unit coverage height test crds openapi clean simulate-day gpu-smoke test-gpu

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## Fill .venv with everything that development and tests need

$(STAMP): requirements/dev.lock pyproject.toml
	@echo "== python environment"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check "uv>=0.9,<1"
	@UV_CACHE_DIR=$(CACHE)/uv $(BIN)/uv pip install -q --python $(BIN)/python --no-deps -r requirements/dev.lock
	@UV_CACHE_DIR=$(CACHE)/uv $(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

check: $(STAMP) ## Formatting, lint, types, walls, links of the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(foreach p,$(PACKAGES),$(p)/lorafleet_$(p))
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest $(CHECKED)

fmt: $(STAMP) ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: $(STAMP) ## Tests that need nothing but Python
	$(BIN)/pytest $(BESIDE) $(SEEN) -m "not apiserver and not assets and not envoy and not prometheus and not gpu and not heavy and not long" --ignore tests/conformance

coverage: $(STAMP) ## Branch coverage of the pure rooms, at least 95 %
	$(BIN)/pytest $(BESIDE) -m "not gpu and not long" $(PURE_TESTS) $(PURE:%=--cov=%) --cov-branch --cov-report=
	@for room in $(PURE); do \
	  $(BIN)/coverage report --include="$$room/*" --fail-under=95 --skip-covered --skip-empty | tail -1; \
	done

height: $(STAMP) binaries-apiserver assets envoy-binary prometheus-binary ## Tests that need a bare API server, the demo model, Envoy, a running engine or much CPU
	$(BIN)/pytest $(BESIDE) $(SEEN) -m "(apiserver or assets or envoy or prometheus or heavy) and not gpu and not long" --ignore tests/conformance
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not long" tests/conformance

test: SEEN := $(CHECKED:%=--ignore %) $(PURE_TESTS:%=--ignore %)  # each test once: check and coverage run these
test: setup check coverage unit height e2e ## Everything: checks, unit tests, real API server, real model, real cluster
	@echo "== all tests passed"

crds: $(STAMP) ## Write crds/, the chart's copy and docs/reference.md from the models
	$(BIN)/python crds/generate.py

openapi: $(STAMP) ## Write docs/openapi.json, the tenant API, from the engine's models
	$(BIN)/python -m lorafleet_engine.server.openapi > docs/openapi.json

simulate-day: $(STAMP) ## The simulated day of docs/planner.md: its chart and figures (some minutes)
	$(BIN)/python -m lorafleet_operator.simulation.day --chart docs/planner-day.svg --figures docs/planner-day.json

gpu-smoke: ## Time and check one decode step of a 7B model on a CUDA device; prints one line of JSON
	@PYTHONPATH=contracts:engine python3 -m lorafleet_engine.bench.smoke

test-gpu: ## Tests that need a CUDA device, and the conformance suite on it; needs what the engine and its tests import
	PYTHONPATH=$(PYTHONPATH):$(CURDIR) $(PYTHON) -m pytest -o filterwarnings=default -p no:cacheprovider -m gpu tests/engine
	PYTHONPATH=$(PYTHONPATH):$(CURDIR) LORAFLEET_CONFORMANCE_DEVICE=cuda $(PYTHON) -m pytest -o filterwarnings=default -p no:cacheprovider tests/conformance

clean: ## Remove what builds leave in the tree (caches outside stay)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
