"""Percentile bootstrap with indices that several models share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

_BLOCK_BYTES = 32 * 1024 * 1024


def resample_indices(n: int, replicates: int, seed: int) -> np.ndarray:
    """Draw rows with replacement, once for all models that are compared.

    Args:
        n: Number of rows to draw from, and per replicate.
        replicates: Number of replicates.
        seed: Seed; the same one draws the same rows.

    Returns:
        Row indices, shape (replicates, n), int32.

    Raises:
        ValueError: If there is nothing to draw from.
    """
    if n < 1 or replicates < 0:
        msg = f"a bootstrap needs rows to draw from, got n={n} and replicates={replicates}"
        raise ValueError(msg)
    generator = np.random.default_rng(seed)
    return generator.integers(n, size=(replicates, n), dtype=np.int32)


def bootstrap_means(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Compute the mean of the resampled rows of every replicate.

    Args:
        values: One value per row, shape (n,), or several, shape (n, k).
        indices: Shared row indices, shape (replicates, n).

    Returns:
        Replicates of the mean, shape (replicates,) or (replicates, k), float64.

    Raises:
        ValueError: If the indices were drawn for another number of rows.
    """
    values = np.asarray(values, dtype=np.float64)
    _check_rows(len(values), indices)
    columns = values.reshape(len(values), -1)
    result = np.empty((len(indices), columns.shape[1]))
    for part in _blocks(indices):
        for column in range(columns.shape[1]):
            result[part, column] = columns[:, column][indices[part]].mean(axis=1)
    return result.reshape(len(indices), *values.shape[1:])


def bootstrap(statistic: Callable[[np.ndarray], float], indices: np.ndarray) -> np.ndarray:
    """Compute any statistic of the resampled rows of every replicate.

    Args:
        statistic: Takes row indices, shape (n,), returns one number.
        indices: Shared row indices, shape (replicates, n).

    Returns:
        Replicates of the statistic, shape (replicates,), float64.
    """
    return np.array([statistic(rows) for rows in indices], dtype=np.float64)


def interval(replicates: np.ndarray, confidence: float) -> tuple[float, float]:
    """Compute the percentile interval of bootstrap replicates.

    For a paired difference, pass the difference of two models' replicates over the same indices.

    Args:
        replicates: Shape (replicates,). Replicates whose statistic is undefined (NaN) are left out.
        confidence: Share of the replicates inside, in (0, 1).

    Returns:
        Lower and upper bound; NaN both if there is no replicate.

    Raises:
        ValueError: If the confidence is not in (0, 1).
    """
    if not 0.0 < confidence < 1.0:
        msg = f"confidence must be between 0 and 1, got {confidence}"
        raise ValueError(msg)
    defined = np.asarray(replicates, dtype=np.float64)
    defined = defined[~np.isnan(defined)]
    if not defined.size:
        return float("nan"), float("nan")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(defined, [tail, 1.0 - tail])
    return float(low), float(high)


def _blocks(indices: np.ndarray) -> Iterator[slice]:
    """Cut the replicates so that the float64 values of one part stay small."""
    rows = max(1, _BLOCK_BYTES // (8 * max(1, indices.shape[1])))
    for start in range(0, len(indices), rows):
        yield slice(start, start + rows)


def _check_rows(n: int, indices: np.ndarray) -> None:
    if indices.ndim != 2 or indices.shape[1] != n:  # noqa: PLR2004
        msg = f"indices of shape {indices.shape} were not drawn for {n} rows"
        raise ValueError(msg)
