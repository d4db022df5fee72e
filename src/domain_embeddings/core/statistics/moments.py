"""Count, means and scatter of relation vectors in one pass over the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from domain_embeddings.core.errors import DataError

# Rows that are averaged for the shift of a block.
_SHIFT_ROWS = 64


@dataclass(frozen=True)
class Moments:
    """First and second moments of vectors that come from several sources.

    Args:
        count: Rows of each source, shape (S,), int64.
        mean: Mean of each source, shape (S, D); zero for a source without rows.
        global_mean: Mean of all rows (u), shape (D,).
        scatter: Sum over all rows of (r - u)(r - u)^T, shape (D, D).
    """

    count: np.ndarray
    mean: np.ndarray
    global_mean: np.ndarray
    scatter: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows over all sources (N)."""
        return int(self.count.sum())

    @property
    def covariance(self) -> np.ndarray:
        """Covariance C = scatter / N, shape (D, D)."""
        return self.scatter / max(1, self.rows)


def accumulate(
    vectors: Iterable[np.ndarray], sources: Iterable[np.ndarray], n_sources: int
) -> Moments:
    """Accumulate the moments of vectors that arrive in blocks.

    The result depends on the vectors only, not on how they are cut into blocks or ordered.

    Args:
        vectors: Blocks of shape (rows, D), of any float type; computed in float64.
        sources: For each block, the source index of each row, shape (rows,).
        n_sources: Number of sources (S).

    Returns:
        The moments of all rows.

    Raises:
        DataError: If there is no row, the blocks do not fit each other, a source index is out of
            range, or a value is not finite.
    """
    total: Moments | None = None
    room: np.ndarray | None = None
    for block, source in zip(vectors, sources, strict=True):
        if len(block) == 0:
            continue
        if room is None or len(room) < len(block):
            room = np.empty(block.shape)
        part = block_moments(block, source, n_sources, room)
        total = part if total is None else merge(total, part)
    if total is None:
        msg = "There are no relation vectors to take statistics of."
        raise DataError(msg)
    if not np.isfinite(np.diagonal(total.scatter)).all():
        msg = "The relation vectors hold values that are not finite."
        raise DataError(msg)
    return total


def block_moments(
    vectors: np.ndarray, source: np.ndarray, n_sources: int, room: np.ndarray | None = None
) -> Moments:
    """Compute the moments of one block in memory.

    Args:
        vectors: Shape (rows, D) with at least one row.
        source: Source index of each row, shape (rows,).
        n_sources: Number of sources (S).
        room: Float64 scratch space of at least ``rows`` rows; reusing it from block to block saves
            the time the system takes to hand out fresh memory.

    Returns:
        The moments of the block.

    Raises:
        DataError: If shapes disagree or a source index is out of range.
    """
    source = _checked_source(vectors, source, n_sources)
    rows, width = vectors.shape
    if room is None or room.shape[1] != width:
        room = np.empty((rows, width))
    # Any shift near the mean will do, for it is corrected below: a sample of rows gives one, and
    # promotion and centring become one pass over the block.
    shift = vectors[:: max(1, rows // _SHIFT_ROWS)].mean(axis=0, dtype=np.float64)
    shifted = np.subtract(vectors, shift, out=room[:rows])
    # Sums by source as one product: much faster than a loop over sources.
    member = (source == np.arange(n_sources)[:, None]).astype(np.float64)
    sums = member @ shifted
    count = np.bincount(source, minlength=n_sources)
    mean = sums / np.maximum(count, 1)[:, None]
    mean[count > 0] += shift
    rest = sums.sum(axis=0) / rows
    # NumPy hands x.T @ x to the symmetric BLAS product, half the work of a general one.
    scatter = shifted.T @ shifted
    scatter -= np.outer(rows * rest, rest)
    return Moments(count, mean, shift + rest, scatter)


def merge(first: Moments, second: Moments) -> Moments:
    """Combine the moments of two disjoint sets of rows.

    Source: the parallel-variance formula of Chan, Golub and LeVeque; docs/method.md, section 1.

    Args:
        first: Moments over S sources and D dimensions.
        second: Moments over the same sources and dimensions.

    Returns:
        The moments of the union.

    Raises:
        DataError: If the two differ in sources or dimensions.
    """
    if first.mean.shape != second.mean.shape:
        msg = f"Moments of shapes {first.mean.shape} and {second.mean.shape} cannot be merged."
        raise DataError(msg)
    if not first.rows or not second.rows:
        return first if first.rows else second
    rows = first.rows + second.rows
    count = first.count + second.count
    share = second.count / np.maximum(count, 1)
    mean = first.mean + share[:, None] * (second.mean - first.mean)
    delta = second.global_mean - first.global_mean
    scatter = np.outer(delta * (first.rows * second.rows / rows), delta)
    scatter += first.scatter
    scatter += second.scatter
    return Moments(count, mean, first.global_mean + delta * (second.rows / rows), scatter)


def _checked_source(vectors: np.ndarray, source: np.ndarray, n_sources: int) -> np.ndarray:
    source = np.asarray(source)
    if vectors.ndim != 2 or source.shape != (len(vectors),):  # noqa: PLR2004
        msg = f"Vectors of shape {vectors.shape} and sources of shape {source.shape} do not match."
        raise DataError(msg)
    if source.min() < 0 or source.max() >= n_sources:
        msg = f"Source indices reach from {source.min()} to {source.max()}; {n_sources} are known."
        raise DataError(msg)
    return source
