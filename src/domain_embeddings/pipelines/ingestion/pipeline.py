"""The ingestion pipeline."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from domain_embeddings.pipelines.ingestion.nodes import read_task_records


def create_pipeline(**_kwargs: object) -> Pipeline:
    """Return the pipeline that reads the raw tasks."""
    return pipeline(
        [
            node(
                read_task_records,
                inputs="raw_tasks",
                outputs=["task_records", "task_specs", "ingestion_report"],
                name="read_task_records",
            )
        ]
    )
