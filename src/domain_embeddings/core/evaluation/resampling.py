"""Scores of bootstrap resamples, computed from how often each row was drawn.

A resample of n rows is a row of counts that sums to n. Every statistic here takes many resamples at
once and equals, exactly, the score of the rows written out as often as they were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

# Maps counts (replicates, n) to scores (replicates,).
Statistic = Callable[[np.ndarray], np.ndarray]

_BLOCK_ELEMENTS = 2_000_000


def draw_counts(indices: np.ndarray) -> np.ndarray:
    """Count how often each row was drawn.

    Args:
        indices: Drawn rows, shape (replicates, n), values in [0, n).

    Returns:
        Counts, shape (replicates, n), uint16; every row sums to n.
    """
    replicates, n = indices.shape
    counts = np.empty((replicates, n), dtype=np.uint16)
    for row, drawn in enumerate(indices):
        counts[row] = np.bincount(drawn, minlength=n)
    return counts


def mean_statistic(values: npt.ArrayLike) -> Statistic:
    """Return the statistic 'mean of per-row values' (n,); rows without a value (NaN) are left out.

    It is NaN where a resample has no row with a value.
    """
    outcomes = np.asarray(values, dtype=np.float64)
    defined = ~np.isnan(outcomes)
    filled, weights = np.where(defined, outcomes, 0.0), defined.astype(np.float64)

    def block_means(block: np.ndarray) -> np.ndarray:
        seen = block @ weights
        return np.divide(block @ filled, seen, out=np.full_like(seen, np.nan), where=seen > 0)

    return lambda counts: _blockwise(counts, block_means)


def average_precision_statistic(
    scores: Sequence[npt.ArrayLike], labels: npt.ArrayLike
) -> Statistic:
    """Return the statistic 'largest average precision over several similarity measures'.

    Args:
        scores: One array (n,) per measure, higher meaning more similar.
        labels: 1 for a pair that belongs together, 0 otherwise, shape (n,).

    Returns:
        The statistic; a resample without a positive scores 0, as in scikit-learn.
    """
    truth = np.asarray(labels, dtype=np.float64)
    measures = [_descending_groups(np.asarray(score, dtype=np.float64)) for score in scores]

    def block_scores(block: np.ndarray) -> np.ndarray:
        every = [_average_precision(block, truth, order, ends) for order, ends in measures]
        return np.max(every, axis=0)

    return lambda counts: _blockwise(counts, block_scores)


def spearman_statistic(gold: npt.ArrayLike, predicted: npt.ArrayLike) -> Statistic:
    """Return the statistic 'Spearman correlation', ranks being taken anew in every resample.

    Args:
        gold: Gold scores, shape (n,).
        predicted: Predicted similarities, shape (n,).

    Returns:
        The statistic; NaN where a resample has a constant side.
    """
    sides = [_ascending_groups(np.asarray(side, dtype=np.float64)) for side in (gold, predicted)]

    def block_scores(block: np.ndarray) -> np.ndarray:
        ranks = [_weighted_ranks(block, groups) for groups in sides]
        return _weighted_correlation(block, *ranks)

    return lambda counts: _blockwise(counts, block_scores)


def _blockwise(counts: np.ndarray, score: Statistic) -> np.ndarray:
    """Apply ``score`` to a few resamples at a time, as float64, to bound the memory."""
    rows = max(1, _BLOCK_ELEMENTS // max(1, counts.shape[1]))
    blocks = [
        score(counts[start : start + rows].astype(np.float64))
        for start in range(0, len(counts), rows)
    ]
    return np.concatenate(blocks) if blocks else np.empty(0)


def _descending_groups(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order rows by falling score; mark the last row of every group of equal scores."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return order, ends


def _average_precision(
    counts: np.ndarray, truth: np.ndarray, order: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Average precision sum_k (R_k - R_{k-1}) P_k with a threshold at every distinct score."""
    drawn = counts[:, order]
    hits = np.cumsum(drawn * truth[order], axis=1)[:, ends]
    seen = np.cumsum(drawn, axis=1)[:, ends]
    positives = hits[:, -1:]
    precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
    gained = np.diff(hits, axis=1, prepend=0.0)
    total = (gained * precision).sum(axis=1)
    return np.divide(total, positives[:, 0], out=np.zeros_like(total), where=positives[:, 0] > 0)


def _ascending_groups(values: np.ndarray) -> np.ndarray:
    """Number the distinct values of a column from 0, ascending: shape (n,)."""
    return rankdata(values, method="dense").astype(np.int64) - 1


def _weighted_ranks(counts: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Give every row the mid-rank of its group in each resample: shape (replicates, n)."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    middle = np.cumsum(sizes, axis=1) - sizes / 2 + 0.5
    return middle[:, groups]


def _weighted_correlation(counts: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pearson correlation of two columns, each row weighted by its count."""
    total = counts.sum(axis=1, keepdims=True)
    x = first - (counts * first).sum(axis=1, keepdims=True) / total
    y = second - (counts * second).sum(axis=1, keepdims=True) / total
    covariance = (counts * x * y).sum(axis=1)
    scale = np.sqrt((counts * x * x).sum(axis=1) * (counts * y * y).sum(axis=1))
    return np.divide(covariance, scale, out=np.full_like(scale, np.nan), where=scale > 0)
