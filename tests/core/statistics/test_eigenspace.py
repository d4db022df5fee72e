"""The eigenspace is exact, ordered, canonical in sign, and checked."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.eigenspace import (
    active_dimensions,
    canonical_signs,
    check_residual,
    fit_eigenspace,
)


def _orthogonal(width: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def test_a_known_decomposition_is_recovered_in_descending_order() -> None:
    eigenvalues = np.array([5.0, 3.0, 2.0, 0.5])
    basis = canonical_signs(_orthogonal(4))
    space = fit_eigenspace(basis @ np.diag(eigenvalues) @ basis.T, np.arange(4.0), rho=0.99)
    np.testing.assert_allclose(space.eigenvalues, eigenvalues, rtol=1e-12)
    np.testing.assert_allclose(space.eigenvectors, basis, atol=1e-12)
    np.testing.assert_array_equal(space.mean, np.arange(4.0))


def test_the_leading_entry_of_every_eigenvector_is_positive() -> None:
    vectors = canonical_signs(_orthogonal(20))
    leading = np.argmax(np.abs(vectors), axis=0)
    assert (vectors[leading, np.arange(20)] > 0).all()
    np.testing.assert_array_equal(canonical_signs(-vectors), vectors)


def test_the_sign_of_tied_entries_does_not_hang_on_the_last_bit() -> None:
    half = np.sqrt(0.5)
    for nudge in (0.0, 1e-15, -1e-15):
        vector = np.array([[half + nudge], [-half]])
        assert canonical_signs(vector)[0, 0] > 0
        assert canonical_signs(-vector)[0, 0] > 0


@pytest.mark.parametrize(
    ("rho", "expected"), [(0.5, 1), (0.6, 1), (0.61, 2), (0.9, 2), (0.91, 3), (0.99, 3), (1.0, 3)]
)
def test_the_active_set_is_the_smallest_that_reaches_rho(rho: float, expected: int) -> None:
    active = active_dimensions(np.array([6.0, 3.0, 1.0, 0.0]), rho)
    assert active.tolist() == [True] * expected + [False] * (4 - expected)


def test_a_share_reached_exactly_is_not_missed_by_rounding() -> None:
    assert active_dimensions(np.full(10, 0.1), 0.7).sum() == 7
    assert active_dimensions(np.full(10, 0.1), 0.3).sum() == 3


def test_without_variance_nothing_is_active() -> None:
    assert not fit_eigenspace(np.zeros((3, 3)), np.zeros(3), rho=0.99).active.any()


def test_a_rank_deficient_covariance_has_no_negative_eigenvalue() -> None:
    rows = np.random.default_rng(0).standard_normal((5, 30))
    space = fit_eigenspace(rows.T @ rows, np.zeros(30), rho=1.0)
    assert (space.eigenvalues >= 0.0).all()
    assert 5 <= space.active.sum() <= 30


def test_the_residual_is_checked() -> None:
    covariance = np.diag([3.0, 2.0, 1.0])
    assert check_residual(covariance, np.array([3.0, 2.0, 1.0]), np.eye(3), 1e-10) == 0.0
    with pytest.raises(ArithmeticError, match="not accurate"):
        check_residual(covariance, np.array([3.0, 2.0, 1.1]), np.eye(3), 1e-10)
    with pytest.raises(ArithmeticError, match="not accurate"):
        check_residual(covariance, np.full(3, np.nan), np.eye(3), 1e-10)
    with pytest.raises(ArithmeticError, match="not accurate"):
        fit_eigenspace(np.cov(np.random.default_rng(0).random((6, 9))), np.zeros(6), 0.9, 1e-30)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (np.zeros((2, 3)), "square"),
        (np.zeros((0, 0)), "empty"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "not finite"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (np.diag([1.0, -0.5]), "negative eigenvalue"),
        (np.diag([-1.0, -1.0]), "negative eigenvalue"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit_eigenspace(covariance, np.zeros(len(covariance)), rho=0.99)
