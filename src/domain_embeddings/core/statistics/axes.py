"""Orthogonal axes of embeddings, the most telling first."""

from __future__ import annotations

import numpy as np

from domain_embeddings.core.statistics.eigenspace import canonical_signs


def principal_axes(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes along which texts differ most: the eigenvectors of their covariance.

    Args:
        embeddings: Shape (n, d), n >= 2.

    Returns:
        Variances (d,), descending, and the axes as columns (d, d) with canonical signs.

    Source:
        docs/method.md, section 4b.
    """
    return descending_eigh(np.cov(np.asarray(embeddings, dtype=np.float64), rowvar=False))


def shared_axes(
    anchors: np.ndarray, positives: np.ndarray, sources: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes along which an anchor and its positive differ from other texts *together*.

    They are the eigenvectors of the symmetric part of the covariance between anchors and
    positives. What is said about one side only cancels in it, as noise does: such axes come last,
    where a prefix leaves them out. Means are taken per source and side, so that what tells sources
    or sides apart does not count.

    Args:
        anchors: Embeddings, shape (n, d).
        positives: Embeddings of their positives, shape (n, d).
        sources: Source of each pair, shape (n,); a source with one pair adds nothing.

    Returns:
        Shared variances (d,), descending and negative where the two sides disagree, and the axes
        as columns (d, d) with canonical signs.

    Source:
        docs/method.md, section 4b.
    """
    width = anchors.shape[1]
    shared = np.zeros((width, width))
    for source in np.unique(sources):
        rows = sources == source
        a = np.asarray(anchors[rows], dtype=np.float64)
        p = np.asarray(positives[rows], dtype=np.float64)
        shared += (a - a.mean(axis=0)).T @ (p - p.mean(axis=0))
    return descending_eigh((shared + shared.T) / (2 * len(anchors)))


def descending_eigh(symmetric: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues, descending, and eigenvectors as columns with canonical signs.

    Args:
        symmetric: Shape (d, d).
    """
    values, vectors = np.linalg.eigh(symmetric)
    return values[::-1], canonical_signs(vectors[:, ::-1])
