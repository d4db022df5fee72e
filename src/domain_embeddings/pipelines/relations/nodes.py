"""Encode every training pair once with the frozen reference model, and mine negatives from that."""

from __future__ import annotations

from typing import Any

import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.parameters import NegativesParameters, RelationsParameters


def encode_relations(
    reference_model: Any,
    training_pairs: pd.DataFrame,
    task_specs: list[dict[str, Any]],
    parameters: RelationsParameters,
) -> Bundle:
    """Return the relation vectors [anchor ; positive], row k for pair k, as a stream."""
    from functools import partial

    from domain_embeddings.core.encoders.relations import relation_vectors

    encode: Any = relation_vectors
    if parameters.launch.workers > 1:
        from domain_embeddings.core.encoders.sharded import relation_vectors_on_workers

        encode = partial(relation_vectors_on_workers, launch=parameters.launch)
    return encode(
        reference_model,
        training_pairs,
        task_specs,
        batch_tokens=parameters.batch_tokens,
        dtype=parameters.dtype,
    )


def mine_negatives(
    training_pairs: pd.DataFrame,
    relation_vectors: Bundle,
    task_specs: list[dict[str, Any]],
    parameters: NegativesParameters,
    seed: int,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return hard negatives with rank and score, and what was left out; none by default."""
    from domain_embeddings.core.tasks import negatives

    return negatives.mine_negatives(training_pairs, relation_vectors, task_specs, parameters, seed)
