"""The curation pipeline."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node, pipeline

from domain_embeddings.pipelines.curation.nodes import (
    build_training_pairs,
    curate_records,
    find_leakage,
    select_dev_tasks,
    select_evaluation_tasks,
)


def create_pipeline(**_kwargs: object) -> Pipeline:
    """Return the pipeline from task records to training pairs and evaluation tasks."""
    return pipeline(
        [
            node(
                curate_records,
                inputs=["task_records", "task_specs", "params:curation"],
                outputs=["curated_records", "curation_report"],
                name="curate_records",
            ),
            node(
                find_leakage,
                inputs=["curated_records", "task_specs"],
                outputs="leakage_report",
                name="find_leakage",
            ),
            node(
                build_training_pairs,
                inputs=[
                    "curated_records",
                    "task_specs",
                    "leakage_report",
                    "params:curation",
                    "params:seed",
                ],
                outputs=["training_pairs", "pairing_report"],
                name="build_training_pairs",
            ),
            node(
                select_evaluation_tasks,
                inputs=[
                    "curated_records",
                    "task_specs",
                    "leakage_report",
                    "params:curation",
                    "params:evaluation",
                ],
                outputs="evaluation_tasks",
                name="select_evaluation_tasks",
            ),
            node(
                select_dev_tasks,
                inputs=[
                    "curated_records",
                    "task_specs",
                    "leakage_report",
                    "params:curation",
                    "params:evaluation",
                    "params:training",
                ],
                outputs="dev_tasks",
                name="select_dev_tasks",
            ),
        ]
    )
