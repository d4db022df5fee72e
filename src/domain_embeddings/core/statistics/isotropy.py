"""Measures of the geometry of embeddings: how evenly, how far apart, how far from a reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.eigenspace import Eigenspace

_BLOCK_ROWS = 2_048


@dataclass(frozen=True)
class IsoScore:
    """How evenly the variance spreads over dimensions, and on how many vectors that rests.

    Args:
        value: 0 (one dimension carries everything) to 1 (all carry the same).
        rows: Number of vectors (m); the fewer, the less certain.
    """

    value: float
    rows: int


@dataclass(frozen=True)
class CrossCorrelation:
    """Correlation between a prefix and the rest of the dimensions.

    Args:
        largest: Maximum of abs(R[:m, m:]).
        mean: Mean of abs(R[:m, m:]).
    """

    largest: float
    mean: float


def iso_score(vectors: np.ndarray) -> IsoScore:
    """Compute the IsoScore with the bias of few vectors taken out.

    (tr(C)^2 / F - 1) / (d - 1) with F = ||C||_F^2 - tr(C)^2 / (m - 1) in place of ||C||_F^2, cut
    to [0, 1]. Source: Rudman et al. (2022); correction and symbols: docs/method.md, section 6.

    Args:
        vectors: Shape (m, d), m >= 2.

    Returns:
        The score and m. One dimension alone scores 1; vectors without variance score 0.

    Raises:
        DataError: If there are fewer than two vectors or a value is not finite.
    """
    rows, width = _checked(vectors).shape
    covariance = _covariance(vectors)
    trace_squared = float(np.trace(covariance)) ** 2
    if trace_squared == 0.0:
        return IsoScore(0.0, rows)
    if width == 1:
        return IsoScore(1.0, rows)
    unbiased = float(np.sum(covariance**2)) - trace_squared / (rows - 1)
    # The corrected norm cannot truly be below that of a perfectly even covariance.
    unbiased = max(unbiased, trace_squared / width)
    return IsoScore(max(0.0, (trace_squared / unbiased - 1.0) / (width - 1)), rows)


def effective_rank(vectors: np.ndarray) -> float:
    """Compute exp of the entropy of the shares of variance of the principal directions.

    Source: Roy and Vetterli (2007), on the eigenvalues of the covariance.

    Args:
        vectors: Shape (m, d), m >= 2.

    Returns:
        Between 1 and min(d, m - 1); 0 for vectors without variance.

    Raises:
        DataError: If there are fewer than two vectors or a value is not finite.
    """
    eigenvalues = np.linalg.eigvalsh(_covariance(_checked(vectors)))
    eigenvalues = eigenvalues[eigenvalues > max(0.0, eigenvalues[-1]) * 1e-12]
    if not eigenvalues.size:
        return 0.0
    share = eigenvalues / eigenvalues.sum()
    return float(np.exp(-np.sum(share * np.log(share))))


def alignment(anchors: np.ndarray, positives: np.ndarray) -> float:
    """Compute the mean squared distance of the two sides of a pair, lower is better.

    Source: Wang and Isola (2020), alpha = 2.

    Args:
        anchors: L2-normalised, shape (n, d).
        positives: L2-normalised, shape (n, d).

    Returns:
        The alignment, 0 to 4.

    Raises:
        DataError: If the two differ in shape or are empty.
    """
    anchors, positives = _checked_pair(anchors, positives)
    return float(np.mean(np.sum((anchors - positives) ** 2, axis=1)))


def uniformity(vectors: np.ndarray, t: float = 2.0, block_rows: int = _BLOCK_ROWS) -> float:
    """Compute log mean exp(-t ||x_i - x_k||^2) over all pairs i != k, lower is better.

    Source: Wang and Isola (2020). Needs (block_rows, m) numbers at a time.

    Args:
        vectors: L2-normalised, shape (m, d), m >= 2.
        t: Sharpness of the kernel.
        block_rows: Rows compared with all others at a time.

    Returns:
        The uniformity, 0 where all vectors are one and negative elsewhere.

    Raises:
        DataError: If there are fewer than two vectors or a value is not finite.
    """
    vectors = _checked(vectors)
    rows = len(vectors)
    total = 0.0
    for start, block in _blocks(vectors, block_rows):
        similarity = block @ vectors.T
        kernel = np.exp(2.0 * t * (np.minimum(similarity, 1.0) - 1.0))
        kernel[np.arange(len(block)), start + np.arange(len(block))] = 0.0
        total += float(kernel.sum())
    # Nothing is that far apart on the unit sphere: exp(-4t) is the least a pair can add.
    return float(np.log(total / (rows * (rows - 1))))


def variance_cv(vectors: np.ndarray) -> float:
    """Compute the coefficient of variation of the variance per dimension, std_j(v) / mean_j(v).

    Args:
        vectors: Shape (m, d), m >= 2.

    Returns:
        0 where all dimensions vary alike; 0 too where none varies.

    Raises:
        DataError: If there are fewer than two vectors or a value is not finite.
    """
    variance = _checked(vectors).var(axis=0)
    mean = float(variance.mean())
    return float(variance.std()) / mean if mean else 0.0


def cross_correlation(vectors: np.ndarray, widths: Iterable[int]) -> dict[int, CrossCorrelation]:
    """Measure how much each prefix is correlated with the dimensions it leaves out.

    Source: docs/method.md, section 6.

    Args:
        vectors: Full width, shape (m, d), m >= 2.
        widths: Prefix widths; those that leave nothing out (>= d) are skipped.

    Returns:
        Maximum and mean of abs(R[:m, m:]) by width. A dimension that does not vary correlates
        with nothing.

    Raises:
        DataError: If there are fewer than two vectors, a value is not finite, or a width is < 1.
    """
    covariance = _covariance(_checked(vectors))
    deviation = np.sqrt(np.diagonal(covariance))
    inverse = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0.0)
    magnitude = np.abs(covariance * inverse[:, None] * inverse)
    result = {}
    for width in widths:
        if width < 1:
            msg = f"A prefix has at least one dimension, got {width}."
            raise DataError(msg)
        if width < len(covariance):
            block = magnitude[:width, width:]
            result[width] = CrossCorrelation(float(block.max()), float(block.mean()))
    return result


def mean_shift(vectors: np.ndarray, reference: np.ndarray) -> float:
    """Compute mean (1 - cos(r, r0)): how far vectors moved from the reference model's.

    Args:
        vectors: Shape (n, D).
        reference: The same rows by the reference model, shape (n, D).

    Returns:
        0 (same directions) to 2 (opposite). A zero vector has cosine 0 with everything.

    Raises:
        DataError: If the two differ in shape or are empty.
    """
    vectors, reference = _checked_pair(vectors, reference)
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    dots = np.einsum("nd,nd->n", vectors, reference)
    cosine = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0.0)
    return float(np.mean(1.0 - cosine))


def linear_cka(first: np.ndarray, second: np.ndarray) -> float:
    """Compute linear centred kernel alignment, the similarity of two representations.

    Source: Kornblith et al. (2019). Invariant to rotation and uniform scaling of either side.

    Args:
        first: Shape (n, d1), n >= 2.
        second: The same rows in another representation, shape (n, d2).

    Returns:
        0 to 1; 0 where one side does not vary.

    Raises:
        DataError: If the two differ in rows, or there are fewer than two.
    """
    if len(first) != len(second):
        msg = f"Both sides need the same rows, got {len(first)} and {len(second)}."
        raise DataError(msg)
    first, second = _centred(_checked(first)), _centred(_checked(second))
    cross = np.linalg.norm(first.T @ second) ** 2
    own = np.linalg.norm(first.T @ first) * np.linalg.norm(second.T @ second)
    return float(cross / own) if own else 0.0


def source_bias(
    vectors: np.ndarray, source: np.ndarray, n_sources: int, eigenspace: Eigenspace
) -> np.ndarray:
    """Compute |mu_s - m| over the active dimensions of a given eigenspace.

    Source: docs/method.md, section 6. Measure before and after in the *same* eigenspace.

    Args:
        vectors: Relation vectors, shape (n, D).
        source: Source index of each row, shape (n,).
        n_sources: Number of sources (S).
        eigenspace: Eigenspace of the reference relation vectors.

    Returns:
        Distance of each source mean from the component-wise median, shape (S,); NaN for a source
        without rows.

    Raises:
        DataError: If there is no row or a value is not finite.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if not len(vectors) or not np.isfinite(vectors).all():
        msg = "Source bias needs at least one vector, and finite ones."
        raise DataError(msg)
    basis = eigenspace.eigenvectors[:, eigenspace.active]
    member = (np.asarray(source) == np.arange(n_sources)[:, None]).astype(np.float64)
    count = member.sum(axis=1)
    means = ((member @ vectors) / np.maximum(count, 1.0)[:, None] - eigenspace.mean) @ basis
    median = np.median(means[count > 0], axis=0)
    return np.where(count > 0, np.linalg.norm(means - median, axis=1), np.nan)


def _covariance(vectors: np.ndarray) -> np.ndarray:
    centred = _centred(np.asarray(vectors, dtype=np.float64))
    return np.atleast_2d(centred.T @ centred) / (len(centred) - 1)


def _centred(vectors: np.ndarray) -> np.ndarray:
    centred: np.ndarray = vectors - vectors.mean(axis=0)
    return centred


def _blocks(vectors: np.ndarray, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(vectors), rows):
        yield start, vectors[start : start + rows]


def _checked(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors in float64, refusing what has no defined geometry."""
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) < 2 or vectors.shape[1] < 1:  # noqa: PLR2004
        msg = f"At least two vectors of at least one dimension are needed, got {vectors.shape}."
        raise DataError(msg)
    if not np.isfinite(vectors).all():
        msg = "The vectors hold values that are not finite."
        raise DataError(msg)
    return vectors


def _checked_pair(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first = np.asarray(first, dtype=np.float64)
    second = np.asarray(second, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 2 or not len(first):  # noqa: PLR2004
        msg = f"Two equal sets of vectors are needed, got {first.shape} and {second.shape}."
        raise DataError(msg)
    return first, second
