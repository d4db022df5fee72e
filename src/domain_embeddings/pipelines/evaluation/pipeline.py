"""evaluation: both models + evaluation_tasks -> scores and replicates, geometry, scores of mteb."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from domain_embeddings.pipelines.evaluation.nodes import (
    embed_adapted,
    embed_reference,
    fit_quantisation,
    measure_costs,
    measure_geometry,
    score,
    score_mteb,
)


def create_pipeline() -> Pipeline:
    """Return the evaluation pipeline."""
    texts = ["evaluation_tasks", "training_pairs", "task_specs"]
    settings = ["params:evaluation", "params:widths", "params:seed"]
    banks = ["reference_embeddings", "adapted_embeddings"]
    return Pipeline(
        [
            node(
                embed_reference,
                ["reference_model", *texts, *settings],
                "reference_embeddings",
                name="embed_reference",
            ),
            node(
                embed_adapted,
                ["adapted_model", *texts, *settings],
                "adapted_embeddings",
                name="embed_adapted",
            ),
            node(
                fit_quantisation,
                [*banks, *texts[1:], *settings],
                "quantisation_ranges",
                name="fit_quantisation",
            ),
            node(
                score,
                [
                    *banks,
                    "quantisation_ranges",
                    *texts,
                    "params:evaluation",
                    "training_report",
                    *settings[1:],
                ],
                ["truncation_scores", "score_replicates"],
                name="score",
            ),
            node(
                measure_costs,
                [
                    "adapted_embeddings",
                    "quantisation_ranges",
                    "score_replicates",
                    "evaluation_tasks",
                    "task_specs",
                    *settings,
                ],
                "vector_costs",
                name="measure_costs",
            ),
            node(
                measure_geometry,
                [*banks, *texts[1:], "relation_eigenspace", "shrinkage", *settings],
                "geometry_scores",
                name="measure_geometry",
            ),
            node(
                score_mteb,
                [
                    "reference_model",
                    "adapted_model",
                    "truncation_scores",
                    "score_replicates",
                    "params:evaluation",
                    "training_report",
                    "params:widths",
                ],
                ["mteb_scores", "mteb_results"],
                name="score_mteb",
            ),
        ]
    )
