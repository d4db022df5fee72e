"""relations: training_pairs + reference model -> relation_vectors -> mined_negatives."""

from __future__ import annotations

from kedro.pipeline import Pipeline, node

from domain_embeddings.pipelines.relations.nodes import encode_relations, mine_negatives


def create_pipeline() -> Pipeline:
    """Return the relations pipeline."""
    return Pipeline(
        [
            node(
                encode_relations,
                ["reference_model", "training_pairs", "task_specs", "params:relations"],
                "relation_vectors",
                name="encode_relations",
            ),
            node(
                mine_negatives,
                [
                    "training_pairs",
                    "relation_vectors",
                    "task_specs",
                    "params:negatives",
                    "params:seed",
                ],
                ["mined_negatives", "negatives_report"],
                name="mine_negatives",
            ),
        ]
    )
