"""Shared by all tests: no network, few threads, no work left running."""

from __future__ import annotations

import os

# Whoever sets up logging first decides how wide its lines are for all tests of a process.
os.environ.setdefault("COLUMNS", "400")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
