"""REZE: from relation vectors to the shrinkage that training aims at."""

from __future__ import annotations

from typing import Any

from kedro.pipeline import Pipeline, node

from domain_embeddings.pipelines.reze.nodes import (
    accumulate_moments,
    decompose,
    fit_shrinkage,
    measure_task_variance,
)


def create_pipeline(**_: Any) -> Pipeline:
    """Create the REZE pipeline.

    Returns:
        relation_vectors -> relation_moments -> relation_eigenspace -> task_variance -> shrinkage.
    """
    return Pipeline(
        [
            node(
                accumulate_moments,
                inputs=["relation_vectors", "params:reze"],
                outputs="relation_moments",
                name="accumulate_moments",
            ),
            node(
                decompose,
                inputs=["relation_moments", "params:reze"],
                outputs="relation_eigenspace",
                name="decompose",
            ),
            node(
                measure_task_variance,
                inputs=["relation_moments", "relation_eigenspace", "params:reze"],
                outputs="task_variance",
                name="measure_task_variance",
            ),
            node(
                fit_shrinkage,
                inputs=["relation_eigenspace", "task_variance", "params:reze"],
                outputs="shrinkage",
                name="fit_shrinkage",
            ),
        ]
    )
