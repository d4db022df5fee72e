"""reporting: scores, geometry and statistics -> recommendation, figures, report, model card."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from domain_embeddings.pipelines.reporting import nodes


def create_pipeline() -> Pipeline:
    """Return the reporting pipeline."""
    return Pipeline(
        [
            node(
                nodes.recommend,
                ["truncation_scores", "params:reporting", "params:widths"],
                "width_recommendation",
                name="recommend_width",
            ),
            node(
                nodes.plot_quality,
                "truncation_scores",
                "quality_by_dimension",
                name="plot_quality",
            ),
            node(
                nodes.draw_quality,
                "truncation_scores",
                "quality_picture",
                name="draw_quality",
            ),
            node(
                nodes.plot_costs,
                ["vector_costs", "width_recommendation"],
                "quality_by_bytes",
                name="plot_costs",
            ),
            node(
                nodes.plot_spectrum,
                ["relation_eigenspace", "shrinkage"],
                "eigen_spectrum",
                name="plot_spectrum",
            ),
            node(
                nodes.plot_task_variance,
                "geometry_scores",
                "task_variance_plot",
                name="plot_task_variance",
            ),
            node(
                nodes.plot_relation_map,
                ["relation_vectors", "params:reporting", "params:seed"],
                "relation_map",
                name="plot_relation_map",
            ),
            node(nodes.plot_losses, "training_history", "loss_curves", name="plot_losses"),
            node(
                nodes.write_report,
                [
                    "width_recommendation",
                    "truncation_scores",
                    "vector_costs",
                    "geometry_scores",
                    "mteb_scores",
                    "training_history",
                    "training_report",
                    "relation_vectors",
                    "relation_eigenspace",
                    "task_variance",
                    "shrinkage",
                    "task_specs",
                    "ingestion_report",
                    "curation_report",
                    "leakage_report",
                    "pairing_report",
                    "params:curation",
                    "params:reze",
                    "params:evaluation",
                    "params:seed",
                ],
                "adaptation_report",
                name="write_report",
            ),
            node(
                nodes.write_model_card,
                [
                    "adapted_model",
                    "width_recommendation",
                    "truncation_scores",
                    "training_report",
                    "task_specs",
                    "shrinkage",
                    "params:widths",
                    "params:seed",
                ],
                "model_card",
                name="write_model_card",
            ),
            node(
                nodes.check_retention,
                ["width_recommendation", "adaptation_report", "model_card", "params:evaluation"],
                None,
                name="check_retention",
            ),
        ]
    )
