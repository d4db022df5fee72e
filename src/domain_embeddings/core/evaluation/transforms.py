"""Post-hoc transforms of finished embeddings, fitted on training text only.

They are the cheap rivals of every nested training method: one matrix (but for ``flow``, which is
not linear), and the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.covariance import ledoit_wolf

from domain_embeddings.core.encoders.contrastive_axes import contrastive_axes
from domain_embeddings.core.encoders.pair_vectors import PairVectors
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.statistics.axes import (
    descending_eigh,
    principal_axes,
    shared_axes,
)


@dataclass(frozen=True)
class Transform:
    """The map x -> (x - offset) matrix, before the prefix is taken.

    Args:
        name: Name of the transform.
        matrix: Shape (d, d) or None for the identity.
        offset: Shape (d,) or None for zero.
    """

    name: str
    matrix: np.ndarray | None = None
    offset: np.ndarray | None = None

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Transform rows, shape (n, d), in float32; the result is not normalised."""
        result = vectors if self.offset is None else vectors - self.offset
        return result if self.matrix is None else result @ self.matrix


def shared(pairs: PairVectors) -> Transform:
    """Rotate by the axes that anchors and positives share (docs/method.md, section 4b).

    Args:
        pairs: Embeddings of training pairs.

    Returns:
        The transform.
    """
    _, axes = shared_axes(pairs.anchors, pairs.positives, pairs.sources)
    return Transform("shared", axes.astype(np.float32))


def contrastive(pairs: PairVectors, widths: Sequence[int]) -> Transform:
    """Rotate by learned axes: what `training.rotation` does, alone, to a model as it is.

    Args:
        pairs: Embeddings of training pairs.
        widths: Widths that prefixes are taken at.

    Returns:
        The transform.
    """
    return Transform("contrastive", contrastive_axes(pairs, widths).astype(np.float32))


def pca(vectors: np.ndarray) -> Transform:
    """Rotate by the eigenvectors of the covariance, without centring.

    x' = x U (docs/method.md, section 4b with mu = 0). A rotation changes no cosine at full width,
    so whatever this transform gains or loses at a smaller width is due to the order of the axes
    alone, and text from outside the domain loses least.

    Args:
        vectors: Embeddings of training text, shape (n, d).

    Returns:
        The transform.
    """
    return Transform("pca", principal_axes(vectors)[1].astype(np.float32))


def pca_centred(vectors: np.ndarray) -> Transform:
    """Subtract the mean of the training text, then rotate as `pca` does.

    x' = (x - mu) U (docs/method.md, section 4b). Removing the common direction spreads cosines
    apart, which mostly helps inside the domain; it changes cosines at full width too, and costs
    more on text that is unlike the training text.

    Args:
        vectors: Embeddings of training text, shape (n, d).

    Returns:
        The transform.
    """
    rotation = pca(vectors)
    return Transform("pca_centred", rotation.matrix, _mean(vectors))


def whitening(vectors: np.ndarray) -> Transform:
    """Centre, rotate and give every axis unit variance under a shrunk covariance.

    x' = (x - mu) U Lam^(-1/2), with U Lam U^T the Ledoit-Wolf estimate of the covariance: the
    sample covariance is singular when there are fewer texts than dimensions (docs/method.md,
    section 5).

    Args:
        vectors: Embeddings of training text, shape (n, d).

    Returns:
        The transform.
    """
    covariance, _ = ledoit_wolf(_double(vectors))
    values, axes = descending_eigh(covariance)
    floor = np.finfo(np.float32).eps * values[0]
    matrix = axes / np.sqrt(np.maximum(values, floor))
    return Transform("whitening", matrix.astype(np.float32), _mean(vectors))


def _flow(vectors: np.ndarray) -> Transform:
    """Fit a small volume-preserving flow (`core.evaluation.flow`)."""
    from domain_embeddings.core.evaluation.flow import flow

    return flow(vectors)


# Fitted on the distinct texts of the training pairs.
_OF_TEXTS: dict[str, Callable[[np.ndarray], Transform]] = {
    "none": lambda _texts: Transform("none"),
    "pca": pca,
    "pca_centred": pca_centred,
    "whitening": whitening,
    "flow": _flow,
}
# Fitted on the pairs, for the widths.
_OF_PAIRS: dict[str, Callable[[PairVectors, Sequence[int]], Transform]] = {
    "shared": lambda pairs, _widths: shared(pairs),
    "contrastive": contrastive,
}
TRANSFORMS = (*_OF_TEXTS, *_OF_PAIRS)


def fit_transform(
    name: str,
    vectors: np.ndarray,
    pairs: PairVectors | None = None,
    widths: Sequence[int] = (),
) -> Transform:
    """Fit a transform by its name.

    Args:
        name: One of `TRANSFORMS`.
        vectors: Embeddings of training text of the model it is applied to, shape (n, d), n >= 2.
        pairs: Embeddings of training pairs; needed by ``shared`` and ``contrastive``.
        widths: Widths that prefixes are taken at; needed by ``contrastive``.

    Returns:
        The transform.

    Raises:
        ParameterError: The name is unknown, there are too few texts to fit on, or no pairs.
    """
    if name not in TRANSFORMS:
        msg = f"evaluation.transforms: '{name}' is unknown; allowed: {', '.join(TRANSFORMS)}"
        raise ParameterError(msg)
    if name != "none" and len(vectors) < 2:  # noqa: PLR2004
        msg = (
            f"evaluation.transforms: '{name}' is fitted on training text and needs at least 2 "
            f"texts, got {len(vectors)}; raise evaluation.fit_pairs or choose 'none'"
        )
        raise ParameterError(msg)
    if name in _OF_TEXTS:
        return _OF_TEXTS[name](vectors)
    if pairs is None:
        msg = f"evaluation.transforms: '{name}' is fitted on training pairs, and none are given"
        raise ParameterError(msg)
    return _OF_PAIRS[name](pairs, widths)


def _double(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors, dtype=np.float64)


def _mean(vectors: np.ndarray) -> np.ndarray:
    return _double(vectors).mean(axis=0).astype(np.float32)
