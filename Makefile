# Everything runs in .venv, made from the committed constraints. `make help` lists the targets.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export OMP_WAIT_POLICY ?= PASSIVE
export DO_NOT_TRACK ?= true
export MLFLOW_DISABLE_TELEMETRY ?= true
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION ?= false

.DEFAULT_GOAL := help
.PHONY: help install run ship test bench lint format viz ui clean

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,export]'
	@touch $(STAMP)

install: $(STAMP)  ## Create .venv and install the project with its pinned dependencies

run: $(STAMP)  ## Adapt the embedded model to the embedded code domain (ARGS=... is passed on)
	$(BIN)/kedro run --pipelines=domain_adapt $(ARGS)

ship: $(STAMP)  ## Export what the last run made: models of one width, ONNX, vectors, index (ARGS=...)
	$(BIN)/kedro run --pipelines=export $(ARGS)

# A file of tests stays in one process, which shares what its fixtures have made.
test: $(STAMP)  ## Run the tests (ARGS=... is passed on)
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile $(ARGS)

bench: $(STAMP)  ## Measure training speed against sentence-transformers (ARGS=... is passed on)
	$(BIN)/python -m benchmarks.training $(ARGS)

lint: $(STAMP)  ## Check style, types and the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

viz: $(STAMP)  ## Open the lineage of the pipeline in a browser
	$(BIN)/kedro viz run

ui: $(STAMP)  ## Open MLflow on http://127.0.0.1:5000
	$(BIN)/mlflow ui --backend-store-uri sqlite:///$(CURDIR)/mlflow.db --host 127.0.0.1

clean:  ## Remove the environment; data and runs stay
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache
