"""Task variance against a hand-computed example and its special cases."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.statistics.eigenspace import Eigenspace
from domain_embeddings.core.statistics.moments import Moments
from domain_embeddings.core.statistics.task_variance import absolute_eps, measure_task_variance


def _space(width: int, active: int, basis: np.ndarray | None = None) -> Eigenspace:
    return Eigenspace(
        eigenvalues=np.arange(width, 0, -1.0),
        eigenvectors=np.eye(width) if basis is None else basis,
        mean=np.full(width, 10.0),
        active=np.arange(width) < active,
    )


def _moments(means: list[list[float]], count: list[int] | None = None) -> Moments:
    mean = np.array(means) + 10.0
    rows = np.array(count or [3] * len(mean))
    width = mean.shape[1]
    return Moments(rows, mean, np.full(width, 10.0), np.eye(width))


MEANS = [[0.0, 1.0, 0.0, 5.0], [1.0, 1.0, 2.0, 0.0], [5.0, 1.0, -1.0, 0.0]]


def test_the_hand_computed_example() -> None:
    found = measure_task_variance(_moments(MEANS), _space(4, 3), gamma=2.0, eps=0.0)
    np.testing.assert_allclose(found.source_means, MEANS, atol=1e-12)
    np.testing.assert_allclose(found.median, [1, 1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(found.variance, [17 / 3, 0, 5 / 3, 25 / 3], atol=1e-12)
    np.testing.assert_allclose(found.half_width, [10 / 3, 0, 2, 10 / 3], atol=1e-12)
    # Over the three active dimensions: median 5/3, MAD = median(4, 5/3, 0) = 5/3.
    assert found.threshold == pytest.approx(5 / 3 + 2.0 * 5 / 3)
    assert found.variant.tolist() == [True, False, False, False]  # the last one is not active


def test_eps_is_relative_to_the_median_magnitude_of_active_source_means() -> None:
    means = np.array(MEANS)
    active = np.array([True, True, True, False])
    assert absolute_eps(means, active, 1e-2) == pytest.approx(
        1e-2 * np.median(np.abs(means[:, :3]))
    )
    without = measure_task_variance(_moments(MEANS), _space(4, 3), eps=0.0).threshold
    with_eps = measure_task_variance(_moments(MEANS), _space(4, 3), eps=1e-2).threshold
    assert with_eps - without == pytest.approx(1e-2)


def test_source_means_are_expressed_in_the_eigenspace() -> None:
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    found = measure_task_variance(_moments(MEANS), _space(4, 4, basis))
    for s, mean in enumerate(MEANS):
        for j in range(4):
            assert found.source_means[s, j] == pytest.approx(basis[:, j] @ np.array(mean))


def test_a_source_without_rows_takes_no_part() -> None:
    with_empty = measure_task_variance(_moments([*MEANS, [9.0] * 4], [3, 3, 3, 0]), _space(4, 3))
    without = measure_task_variance(_moments(MEANS), _space(4, 3))
    np.testing.assert_array_equal(with_empty.variance, without.variance)
    assert with_empty.threshold == without.threshold
    np.testing.assert_array_equal(with_empty.source_means[3], with_empty.median)
    assert with_empty.present.tolist() == [True, True, True, False]


def test_one_source_differs_from_nothing() -> None:
    found = measure_task_variance(_moments(MEANS[:1]), _space(4, 3))
    assert not found.variance.any()
    assert not found.variant.any()


def test_without_active_dimensions_nothing_is_variant() -> None:
    found = measure_task_variance(_moments(MEANS), _space(4, 0))
    assert found.threshold == 0.0
    assert not found.variant.any()
