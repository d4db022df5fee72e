"""From pairs to length-sorted chunks: tokenise once, pad little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from domain_embeddings.core.encoders.batching import (
    count_truncated,
    length_sorted_chunks,
    pad_rows,
    tokenise,
)
from domain_embeddings.core.encoders.packing import pack_rows
from domain_embeddings.core.encoders.pair_vectors import class_ids
from domain_embeddings.core.encoders.relations import pair_texts
from domain_embeddings.core.training.gradient_cache import at_most

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Batch = dict[str, Any]


@dataclass(frozen=True)
class TokenisedPairs:
    """Every text of the training pairs, tokenised once.

    Args:
        rows: Tokenised distinct texts, with their prompts.
        text: Identity of each row's text without prompt, shape (len(rows),): a text is the same
            text under another prompt.
        anchor: Index into ``rows`` for each pair, shape (n,).
        positive: Likewise.
        negatives: Indices of each pair's hard negatives.
        negative_labels: Class of each of them within the pair's task, -1 where it has none.
        label: Class of the pair within its task, -1 where it has none, shape (n,).
        task: Index of the pair's task, shape (n,).
        truncated: Share of the texts of each task that are cut at the maximum length.
    """

    rows: list[dict[str, list[int]]]
    text: np.ndarray
    anchor: np.ndarray
    positive: np.ndarray
    negatives: list[np.ndarray]
    negative_labels: list[np.ndarray]
    label: np.ndarray
    task: np.ndarray
    truncated: dict[str, float]


def tokenise_pairs(
    model: SentenceTransformer, pairs: pd.DataFrame, task_specs: Sequence[Mapping[str, Any]]
) -> TokenisedPairs:
    """Tokenise all texts of the pairs, each distinct text once.

    Args:
        model: Supplies tokenizer, maximum length and default prompts.
        pairs: Training pairs.
        task_specs: Task specifications, for prompts.

    Returns:
        Token rows and the indices that make pairs of them.
    """
    anchors, positives = pair_texts(pairs, task_specs, model.prompts)
    lists = [list(values) for values in pairs["negatives"]]
    lengths = np.array([len(values) for values in lists])
    flat = pd.DataFrame(
        {
            "task": np.repeat(pairs["task"].to_numpy(), lengths),
            "anchor": "",
            "positive": [text for values in lists for text in values],
        }
    )
    _, negatives = pair_texts(flat, task_specs, model.prompts)
    codes, texts = pd.factorize(np.array(anchors + positives + negatives, dtype=object))
    n = len(pairs)
    bare = [*pairs["anchor"], *pairs["positive"], *flat["positive"]]
    identity = np.empty(len(texts), dtype=np.int64)
    identity[codes] = pd.factorize(np.array(bare, dtype=object))[0]
    label = class_ids(pairs)
    bounds = np.cumsum(lengths)[:-1]
    return TokenisedPairs(
        rows=tokenise(model, list(texts)),
        text=identity,
        anchor=codes[:n],
        positive=codes[n : 2 * n],
        negatives=np.split(codes[2 * n :], bounds) if n else [],
        negative_labels=np.split(_labels_of(flat, pairs, label), bounds) if n else [],
        label=label,
        task=pd.factorize(pairs["task"], sort=True)[0],
        truncated=_truncated(model, pairs["task"], anchors, positives),
    )


def _labels_of(negatives: pd.DataFrame, pairs: pd.DataFrame, label: np.ndarray) -> np.ndarray:
    """Return the class of negatives that are texts of a labelled pair of their task, else -1."""
    known = {
        (task, text): code
        for side in ("positive", "anchor")
        for task, text, code in zip(pairs["task"], pairs[side], label, strict=True)
        if code >= 0
    }
    texts = zip(negatives["task"], negatives["positive"], strict=True)
    return np.array([known.get(key, -1) for key in texts], dtype=np.int64)


def _truncated(
    model: SentenceTransformer, tasks: pd.Series, anchors: list[str], positives: list[str]
) -> dict[str, float]:
    """Return the share of truncated texts by task."""
    names = tasks.to_numpy()
    shares = {}
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        texts = [side[i] for side in (anchors, positives) for i in rows]
        shares[str(name)] = count_truncated(model, texts) / len(texts)
    return shares


@dataclass
class PairCollator:
    """Turn pair ids into one batch of length-sorted chunks.

    The order of texts is anchors, positives, negatives; ``order`` maps it to the chunks.

    Args:
        model: Supplies the padding rule of its tokenizer.
        pairs: Tokenised pairs.
        chunks: Largest number of chunks, unless they are split further.
        views: Pair every distinct text of the batch with itself, in place of the pairs; dropout
            makes two views of it. Mined negatives and labels have no part in that.
        rows: Most texts of a chunk, or None.
        packed: Put the texts of a chunk behind each other, unpadded; one chunk then suffices.
        tokens: Real and padded tokens seen so far, for the padding ratio of the report.
    """

    model: SentenceTransformer
    pairs: TokenisedPairs
    chunks: int
    views: bool = False
    rows: int | None = None
    packed: bool = False
    tokens: dict[str, int] = field(default_factory=lambda: {"real": 0, "padded": 0})
    valid_label_columns: list[str] = field(default_factory=list)

    def __call__(self, features: list[dict[str, Any]]) -> Batch:
        """Collate.

        Args:
            features: Rows with the key ``pair_id``.

        Returns:
            ``chunks`` (list of padded or packed inputs), ``inverse`` (n_texts,) that restores the
            order of texts from the concatenated chunks, ``pair_id`` (B,), and the ids that the
            false-negative mask compares: ``text_id`` (n_texts,), ``label`` (B,), ``task`` (B,),
            ``negative_label`` (n_texts - 2 B,). With views, ``label`` and ``task``, like anchors
            and positives, are those of the distinct texts.
            ``tokens`` are the counters as of this batch.
        """
        ids = np.array([feature["pair_id"] for feature in features])
        label, task = self.pairs.label[ids], self.pairs.task[ids]
        if self.views:
            once = self._distinct(ids)
            texts = np.concatenate([once, once])
            label, task = np.full(len(once), -1), np.zeros(len(once), dtype=np.int64)
            negative_label = np.zeros(0, dtype=np.int64)
        else:
            negatives = [self.pairs.negatives[i] for i in ids]
            texts = np.concatenate([self.pairs.anchor[ids], self.pairs.positive[ids], *negatives])
            negative_label = np.concatenate([self.pairs.negative_labels[i] for i in ids])
        rows = [self.pairs.rows[i] for i in texts]
        lengths = np.array([len(row["input_ids"]) for row in rows])
        index = at_most(length_sorted_chunks(lengths, 1 if self.packed else self.chunks), self.rows)
        real = int(lengths.sum())
        padded = sum(len(part) * int(lengths[part].max()) for part in index)
        self.tokens["real"] += real
        self.tokens["padded"] += real if self.packed else padded
        collate = pack_rows if self.packed else pad_rows
        return {
            "chunks": [collate(self.model, [rows[i] for i in part]) for part in index],
            "inverse": torch.from_numpy(np.argsort(np.concatenate(index))),
            "pair_id": torch.from_numpy(ids),
            "text_id": torch.from_numpy(self.pairs.text[texts]),
            "label": torch.from_numpy(label),
            "task": torch.from_numpy(task),
            "negative_label": torch.from_numpy(negative_label),
            "tokens": dict(self.tokens),
        }

    def _distinct(self, ids: np.ndarray) -> np.ndarray:
        """Return the distinct texts of some pairs; one under two prompts is one text."""
        texts = np.concatenate([self.pairs.anchor[ids], self.pairs.positive[ids]])
        _, first = np.unique(self.pairs.text[texts], return_index=True)
        return texts[np.sort(first)]

    def padding_ratio(self) -> float:
        """Return padded over real tokens of all batches so far."""
        return self.tokens["padded"] / max(1, self.tokens["real"])
