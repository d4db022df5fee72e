"""Nodes that read raw tasks."""

from __future__ import annotations

from typing import Any

import pandas as pd

from domain_embeddings.core.tasks.records import RawTasks


def read_task_records(
    raw_tasks: RawTasks,
) -> tuple[pd.DataFrame, list[dict[str, Any]], dict[str, Any]]:
    """Read every task into one table.

    Args:
        raw_tasks: The tasks of the catalog.

    Returns:
        Task records, task specs and the ingestion report.

    Raises:
        DataError: A file is missing or malformed; the message names task, file and line.
    """
    records, report = raw_tasks.read()
    return records, [spec.model_dump(mode="json") for spec in raw_tasks.specs], report
