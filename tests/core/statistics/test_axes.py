from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.statistics.axes import principal_axes, shared_axes

D = 6


def naive_shared(anchors, positives, sources):
    """Sum of outer products, pair by pair."""
    total = np.zeros((D, D))
    for a, p, s in zip(anchors, positives, sources, strict=True):
        own = sources == s
        left, right = a - anchors[own].mean(axis=0), p - positives[own].mean(axis=0)
        total += (np.outer(left, right) + np.outer(right, left)) / 2
    return total / len(anchors)


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    told = rng.normal(size=(60, D)) * np.linspace(2, 0.1, D)
    anchors, positives = told + rng.normal(size=(2, 60, D)) * 0.3
    return anchors, positives, rng.integers(0, 3, size=60)


def test_shared_axes_diagonalise_the_covariance_of_the_two_sides(pairs):
    values, axes = shared_axes(*pairs)
    np.testing.assert_allclose(axes @ np.diag(values) @ axes.T, naive_shared(*pairs), atol=1e-12)
    assert (np.diff(values) <= 0).all()


def test_what_tells_sources_or_sides_apart_does_not_count(pairs):
    anchors, positives, sources = pairs
    values, axes = shared_axes(*pairs)
    far = np.random.default_rng(1).normal(size=(3, D)) * 50
    side = np.random.default_rng(2).normal(size=D) * 50
    moved_values, moved = shared_axes(
        anchors + far[sources], positives + far[sources] + side, sources
    )
    np.testing.assert_allclose(moved_values, values, atol=1e-9)
    np.testing.assert_allclose(moved, axes, atol=1e-8)


def test_equal_sides_of_one_source_give_principal_axes(pairs):
    anchors = pairs[0]
    values, axes = shared_axes(anchors, anchors, np.zeros(len(anchors)))
    expected_values, expected = principal_axes(anchors)
    np.testing.assert_allclose(axes, expected, atol=1e-10)
    np.testing.assert_allclose(values, expected_values * (1 - 1 / len(anchors)), atol=1e-12)


def test_sources_with_one_pair_give_finite_orthogonal_axes(pairs):
    anchors, positives, _ = pairs
    values, axes = shared_axes(anchors, positives, np.arange(len(anchors)))
    np.testing.assert_array_equal(values, np.zeros(D))
    np.testing.assert_allclose(axes.T @ axes, np.eye(D), atol=1e-12)
