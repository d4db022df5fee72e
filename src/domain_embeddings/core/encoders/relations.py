"""Relation vectors: what a model says about a pair, before it is trained on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from domain_embeddings.core.bundle import BlockArray, Bundle
from domain_embeddings.core.encoders.batching import encode_distinct
from domain_embeddings.core.encoders.loading import describe
from domain_embeddings.core.encoders.prompts import prompt_for

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BLOCK_PAIRS = 2_048


def pair_texts(
    pairs: pd.DataFrame, task_specs: Sequence[Mapping[str, Any]], prompts: Mapping[str, str | None]
) -> tuple[list[str], list[str]]:
    """Return anchors and positives with the prompts of their task.

    Relations, training and evaluation all see a text through this rule, so a prompt that is used
    at inference is used in training too.

    Args:
        pairs: Training pairs with the columns task, anchor and positive.
        task_specs: Task specifications by which a task overrides the model's prompts.
        prompts: The model's own prompts by role.

    Returns:
        Two lists of len(pairs) texts.
    """
    specs = {spec["name"]: spec for spec in task_specs}
    texts = []
    for role in ("anchor", "positive"):
        prompt = {name: prompt_for(spec, role, prompts) for name, spec in specs.items()}
        texts.append([prompt[t] + x for t, x in zip(pairs["task"], pairs[role], strict=True)])
    return texts[0], texts[1]


def pair_table_hash(tasks: pd.Series, anchors: Sequence[str], positives: Sequence[str]) -> str:
    """Return a digest of task, anchor and positive of every pair, in order.

    Args:
        tasks: Task of each pair.
        anchors: Texts with their prompts (`pair_texts`), so that another prompt is another table.
        positives: Likewise.
    """
    digest = hashlib.sha256()
    for column in (tasks, pd.Series(anchors), pd.Series(positives)):
        values = column.astype(object)
        digest.update(pd.util.hash_pandas_object(values, index=False).to_numpy().tobytes())
    return digest.hexdigest()[:16]


def relation_vectors(
    model: SentenceTransformer,
    pairs: pd.DataFrame,
    task_specs: Sequence[Mapping[str, Any]],
    *,
    batch_tokens: int,
    dtype: str,
) -> Bundle:
    """Encode r = [anchor ; positive] for every pair, block by block.

    Args:
        model: The frozen reference model.
        pairs: Training pairs.
        task_specs: Task specifications, for prompts.
        batch_tokens: Largest padded batch in tokens.
        dtype: ``float32`` or ``float16`` on disk.

    Returns:
        A bundle of ``vectors`` (n, 2 x width), produced while it is saved, and ``source`` (n,), the
        index of each pair's task in ``header["sources"]``.

    Source:
        docs/method.md, symbols and section 1.
    """
    sources = sorted(pairs["task"].unique())
    anchors, positives = pair_texts(pairs, task_specs, model.prompts)
    width = int(model.get_embedding_dimension() or 0)
    header = {
        **describe(model),
        "sources": sources,
        "pair_table_hash": pair_table_hash(pairs["task"], anchors, positives),
        "pairs": len(pairs),
    }
    blocks = _blocks(model, anchors, positives, batch_tokens, dtype)
    source = pairs["task"].map({name: i for i, name in enumerate(sources)}).to_numpy(np.int32)
    return Bundle(
        {"vectors": BlockArray((len(pairs), 2 * width), dtype, blocks), "source": source}, header
    )


def _blocks(
    model: SentenceTransformer,
    anchors: list[str],
    positives: list[str],
    batch_tokens: int,
    dtype: str,
) -> Iterator[np.ndarray]:
    """Yield relation vectors of consecutive pairs; equal texts of a block are encoded once."""
    with tqdm(total=len(anchors), desc="relation vectors", unit="pair") as bar:
        for start in range(0, len(anchors), BLOCK_PAIRS):
            stop = min(start + BLOCK_PAIRS, len(anchors))
            texts = anchors[start:stop] + positives[start:stop]
            vectors = encode_distinct(model, texts, batch_tokens=batch_tokens, show_progress=False)
            rows = stop - start
            yield np.hstack([vectors[:rows], vectors[rows:]]).astype(dtype)
            bar.update(rows)
