"""export: the adapted model, the recommendation and a corpus -> everything that is shipped."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from domain_embeddings.pipelines.export import nodes


def create_pipeline() -> Pipeline:
    """Return the export pipeline."""
    tasks = ["evaluation_tasks", "task_specs"]
    made = [
        "exported_models",
        "onnx_models",
        "corpus_embeddings",
        "corpus_index",
        "mlflow_models",
    ]
    return Pipeline(
        [
            node(
                nodes.export_models,
                [
                    "adapted_model",
                    "width_recommendation",
                    "quantisation_ranges",
                    "model_card",
                    "shrinkage",
                    "params:export",
                ],
                "exported_models",
                name="export_models",
            ),
            node(
                nodes.convert_to_onnx,
                ["exported_models", *tasks, "params:export"],
                "onnx_models",
                name="convert_to_onnx",
            ),
            node(
                nodes.embed_corpus,
                [
                    "exported_models",
                    "export_corpus",
                    *tasks,
                    "params:export",
                    "params:evaluation",
                ],
                "corpus_embeddings",
                name="embed_corpus",
            ),
            node(
                nodes.index_corpus,
                ["corpus_embeddings", "params:export"],
                "corpus_index",
                name="index_corpus",
            ),
            node(
                nodes.package_for_mlflow,
                ["exported_models", "evaluation_tasks", "params:export"],
                "mlflow_models",
                name="package_for_mlflow",
            ),
            node(
                nodes.report_export,
                made,
                "export_report",
                name="report_export",
            ),
        ]
    )
