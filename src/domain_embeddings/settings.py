"""Kedro settings: no telemetry, and paths that do not depend on the caller's folder."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kedro.config import OmegaConfigLoader
from kedro.utils import find_kedro_project

# Set before MLflow is imported: its telemetry costs seconds without a network, its job workers
# outlive the UI, and it would wait minutes for a tracking server that is down. OpenMP threads that
# spin while they wait make small models crawl on shared machines.
for name, value in {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "true",
}.items():
    os.environ.setdefault(name, value)
# Advice of MLflow and of FastAPI to the authors of kedro-mlflow and kedro-viz is of no use to the
# users of this project. MLflow overrides filters of warnings, so their log records are filtered.
ADVICE = ("Add type hints to the `predict` method", "ORJSONResponse is deprecated")
logging.getLogger("py.warnings").addFilter(
    lambda record: not any(text in record.getMessage() for text in ADVICE)
)

from domain_embeddings.hooks import (  # noqa: E402 - needs the environment above
    CheckpointsHook,
    ParametersHook,
    RecordHook,
    SummaryHook,
    TrackingHook,
)

HOOKS = (ParametersHook(), TrackingHook(), RecordHook(), CheckpointsHook(), SummaryHook())
# TrackingHook calls kedro-mlflow's hook itself, see there. Kedro compares with the name as the
# distribution spells it, which is with an underscore today.
DISABLE_HOOKS_FOR_PLUGINS = ("kedro_mlflow", "kedro-mlflow")
CONFIG_LOADER_CLASS = OmegaConfigLoader
CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    # An environment changes the parameters it names and leaves the rest of a section alone.
    "merge_strategy": {"parameters": "soft"},
    "custom_resolvers": {
        # Resolved when a configuration is read, not when this module is imported.
        "project_path": lambda: str(find_kedro_project(Path.cwd()) or Path.cwd())
    },
}
