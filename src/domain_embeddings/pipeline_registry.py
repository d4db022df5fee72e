"""The pipelines of the project; `domain_adapt` is their sum and the default."""

from __future__ import annotations

from kedro.pipeline import Pipeline

from domain_embeddings.pipelines import (
    curation,
    evaluation,
    ingestion,
    relations,
    reporting,
    reze,
    training,
)

STAGES = (ingestion, curation, relations, reze, training, evaluation, reporting)


def register_pipelines() -> dict[str, Pipeline]:
    """Return every stage by its name, their sum as `domain_adapt` and `__default__`."""
    names = [stage.__name__.rpartition(".")[2] for stage in STAGES]
    # A tag per stage, by which Kedro-Viz filters the graph.
    stages = {
        name: Pipeline(stage.create_pipeline().nodes, tags=name)
        for name, stage in zip(names, STAGES, strict=True)
    }
    whole = sum(stages.values(), Pipeline([]))
    return {**stages, "domain_adapt": whole, "__default__": whole}
