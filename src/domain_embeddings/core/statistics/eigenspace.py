"""Eigenspace of a covariance: principal directions in a canonical form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from domain_embeddings.core.errors import DataError

# Relative to the largest eigenvalue: below it a negative eigenvalue is rounding.
_ROUNDING = 1e-10
# Entries this close to the largest magnitude count as tied; the first of them decides the sign.
_TIE = 1e-9


@dataclass(frozen=True)
class Eigenspace:
    """Eigenvectors of a covariance and the part of them that carries the variance.

    Args:
        eigenvalues: Lam, descending, never negative, shape (D,).
        eigenvectors: W, one eigenvector per column, shape (D, D).
        mean: Origin of the coordinates (u), shape (D,).
        active: Which leading dimensions are active (A), shape (D,), bool.
    """

    eigenvalues: np.ndarray
    eigenvectors: np.ndarray
    mean: np.ndarray
    active: np.ndarray


def fit_eigenspace(
    covariance: np.ndarray, mean: np.ndarray, rho: float, tolerance: float = 1e-10
) -> Eigenspace:
    """Decompose a covariance in float64 on the CPU and check the result.

    Source: docs/method.md, section 1.

    Args:
        covariance: C, symmetric positive semi-definite, shape (D, D).
        mean: Mean of the vectors (u), shape (D,).
        rho: Share of the total variance that the active dimensions carry, in (0, 1].
        tolerance: Largest ||C W - W Lam|| accepted, relative to ||C|| (Frobenius).

    Returns:
        The eigenspace, eigenvalues descending and signs canonical.

    Raises:
        DataError: If the covariance is not square, finite, symmetric and positive semi-definite.
        ArithmeticError: If the decomposition misses the tolerance.
    """
    covariance = np.asarray(covariance, dtype=np.float64)
    _check_covariance(covariance)
    ascending, vectors = np.linalg.eigh(covariance)
    eigenvalues = ascending[::-1]
    if eigenvalues[-1] < -_ROUNDING * max(eigenvalues[0], -eigenvalues[-1]):
        msg = f"The covariance has a negative eigenvalue, {eigenvalues[-1]:.3g}."
        raise DataError(msg)
    eigenvectors = canonical_signs(vectors[:, ::-1])
    check_residual(covariance, eigenvalues, eigenvectors, tolerance)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    active = active_dimensions(eigenvalues, rho)
    return Eigenspace(eigenvalues, eigenvectors, np.asarray(mean, dtype=np.float64), active)


def canonical_signs(eigenvectors: np.ndarray) -> np.ndarray:
    """Choose the sign that makes the entry of largest magnitude of each column positive.

    Args:
        eigenvectors: One eigenvector per column, shape (D, K).

    Returns:
        The same directions, contiguous, shape (D, K).
    """
    magnitude = np.abs(eigenvectors)
    leading = np.argmax(magnitude >= magnitude.max(axis=0) * (1.0 - _TIE), axis=0)
    entries = eigenvectors[leading, np.arange(eigenvectors.shape[1])]
    return np.ascontiguousarray(eigenvectors * np.where(entries < 0, -1.0, 1.0))


def active_dimensions(eigenvalues: np.ndarray, rho: float) -> np.ndarray:
    """Find the smallest set of leading dimensions that carries ``rho`` of the variance.

    Args:
        eigenvalues: Descending, not negative, shape (D,).
        rho: Share of the total variance, in (0, 1].

    Returns:
        A, shape (D,), bool; empty when there is no variance at all.
    """
    cumulative = np.cumsum(eigenvalues)
    active = np.zeros(len(eigenvalues), dtype=bool)
    if cumulative[-1] > 0.0:
        # The slack keeps a share that is reached exactly from being missed by rounding.
        target = rho * cumulative[-1] * (1.0 - 1e-12)
        active[: int(np.searchsorted(cumulative, target)) + 1] = True
    return active & (eigenvalues > 0.0)


def check_residual(
    covariance: np.ndarray, eigenvalues: np.ndarray, eigenvectors: np.ndarray, tolerance: float
) -> float:
    """Compute ||C W - W Lam|| / ||C|| (Frobenius) and refuse a bad decomposition.

    Args:
        covariance: C, shape (D, D).
        eigenvalues: Lam, shape (D,).
        eigenvectors: W, shape (D, D).
        tolerance: Largest value accepted.

    Returns:
        The relative residual.

    Raises:
        ArithmeticError: If the residual is above the tolerance.
    """
    norm = float(np.linalg.norm(covariance))
    difference = covariance @ eigenvectors - eigenvectors * eigenvalues
    residual = float(np.linalg.norm(difference)) / norm if norm else 0.0
    if not residual <= tolerance:
        msg = (
            f"The eigenvalue decomposition is not accurate: ||CW - W Lam|| / ||C|| is "
            f"{residual:.3g}, at most {tolerance:.3g} is accepted."
        )
        raise ArithmeticError(msg)
    return residual


def _check_covariance(covariance: np.ndarray) -> None:
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:  # noqa: PLR2004
        msg = f"A covariance is square, this one has shape {covariance.shape}."
        raise DataError(msg)
    if not covariance.size or not np.isfinite(covariance).all():
        msg = "The covariance is empty or holds values that are not finite."
        raise DataError(msg)
    if not np.allclose(covariance, covariance.T, rtol=1e-9, atol=1e-9 * np.abs(covariance).max()):
        msg = "The covariance is not symmetric."
        raise DataError(msg)
