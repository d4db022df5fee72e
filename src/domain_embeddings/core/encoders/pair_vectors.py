"""Embeddings of training pairs, side by side, and which of their texts and classes are the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from domain_embeddings.core.encoders.prefix import prefix


@dataclass(frozen=True)
class PairVectors:
    """What axes are fitted on.

    Args:
        anchors: Full-width embeddings, shape (n, d).
        positives: Embeddings of their positives, shape (n, d).
        sources: Task of each pair, shape (n,).
        anchor_ids: Identity of each anchor's text, int64 (n,): equal texts have equal ids.
        positive_ids: Likewise for the positives, in the same numbering.
        labels: Class of each pair, int64 (n,), -1 where it has none.
    """

    anchors: np.ndarray
    positives: np.ndarray
    sources: np.ndarray
    anchor_ids: np.ndarray
    positive_ids: np.ndarray
    labels: np.ndarray

    @staticmethod
    def of(pairs: pd.DataFrame, anchors: np.ndarray, positives: np.ndarray) -> PairVectors:
        """Put embeddings beside the pairs they belong to.

        Args:
            pairs: Training pairs, in the order of the embeddings.
            anchors: Shape (n, d).
            positives: Shape (n, d).
        """
        texts = np.concatenate([pairs["anchor"].to_numpy(), pairs["positive"].to_numpy()])
        anchor_ids, positive_ids = np.split(pd.factorize(texts)[0].astype(np.int64), 2)
        sources = pairs["task"].to_numpy()
        return PairVectors(anchors, positives, sources, anchor_ids, positive_ids, class_ids(pairs))

    def centred(self, mean: np.ndarray) -> PairVectors:
        """Return the same pairs with a mean subtracted from their embeddings, normalised anew."""
        sides = (prefix(side - mean, len(mean)) for side in (self.anchors, self.positives))
        return replace(self, anchors=next(sides), positives=next(sides))


def class_ids(pairs: pd.DataFrame) -> np.ndarray:
    """Number the classes of pairs, -1 where a pair has none: int64, shape (n,).

    A class is identified together with its task, so that equal names never meet across tasks.

    Args:
        pairs: Training pairs with the columns task and label.
    """
    keys = [
        None if pd.isna(label) else f"{task}\x1f{label}"
        for task, label in zip(pairs["task"], pairs["label"], strict=True)
    ]
    return pd.factorize(np.array(keys, dtype=object))[0].astype(np.int64)
