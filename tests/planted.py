"""Embeddings of pairs whose truth is known."""

from __future__ import annotations

import numpy as np

from domain_embeddings.core.encoders.pair_vectors import PairVectors


def pair_vectors(anchors, positives, sources=None, labels=None) -> PairVectors:
    """Put two sides together; every text is another one."""
    count = len(anchors)
    ids = np.arange(2 * count)
    return PairVectors(
        np.asarray(anchors),
        np.asarray(positives),
        np.zeros(count) if sources is None else np.asarray(sources),
        ids[:count],
        ids[count:],
        np.full(count, -1) if labels is None else np.asarray(labels),
    )
