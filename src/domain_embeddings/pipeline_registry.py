"""The pipelines of the project; `domain_adapt` is their sum and the default."""

from __future__ import annotations

from types import ModuleType

from kedro.pipeline import Pipeline

from domain_embeddings.pipelines import (
    curation,
    evaluation,
    export,
    ingestion,
    relations,
    reporting,
    reze,
    training,
)

STAGES = (ingestion, curation, relations, reze, training, evaluation, reporting)
# Pipelines that read what a run has left; asked for by name, no part of `domain_adapt`.
ON_REQUEST = (export,)


def register_pipelines() -> dict[str, Pipeline]:
    """Return every stage by its name, their sum as `domain_adapt` and `__default__`."""
    stages = [_tagged(stage) for stage in STAGES]
    whole = sum((pipeline for _, pipeline in stages), Pipeline([]))
    on_request = [_tagged(stage) for stage in ON_REQUEST]
    return {**dict(stages), **dict(on_request), "domain_adapt": whole, "__default__": whole}


def _tagged(stage: ModuleType) -> tuple[str, Pipeline]:
    """Return name and pipeline of a stage, its nodes tagged: Kedro-Viz filters the graph by it."""
    name = stage.__name__.rpartition(".")[2]
    return name, Pipeline(stage.create_pipeline().nodes, tags=name)
