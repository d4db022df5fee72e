"""training: pairs + negatives + vectors + shrinkage -> adapted_model, training_history."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from domain_embeddings.pipelines.training.nodes import train_model


def create_pipeline() -> Pipeline:
    """Return the training pipeline."""
    return Pipeline(
        [
            node(
                train_model,
                [
                    "reference_model",
                    "training_pairs",
                    "task_specs",
                    "relation_vectors",
                    "shrinkage",
                    "mined_negatives",
                    "negatives_report",
                    "dev_tasks",
                    "params:training",
                    "params:evaluation",
                    "params:widths",
                    "params:seed",
                ],
                ["adapted_model", "training_history", "training_report"],
                name="train_model",
            )
        ]
    )
