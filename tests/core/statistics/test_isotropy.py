"""Measures of geometry against naive loops, closed forms and degenerate input."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.eigenspace import Eigenspace
from domain_embeddings.core.statistics.isotropy import (
    alignment,
    cross_correlation,
    effective_rank,
    iso_score,
    linear_cka,
    mean_shift,
    source_bias,
    uniformity,
    variance_cv,
)


def _normal(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width))


def _unit(rows: int, width: int, seed: int = 0) -> np.ndarray:
    vectors = _normal(rows, width, seed)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _orthogonal(width: int) -> np.ndarray:
    return np.linalg.qr(_normal(width, width, 9))[0]


def test_the_isoscore_of_isotropic_vectors_is_one_even_with_few_of_them() -> None:
    vectors = _normal(384, 384)
    covariance = np.cov(vectors.T)
    ratio = np.trace(covariance) ** 2 / np.sum(covariance**2)
    assert (ratio - 1) / 383 == pytest.approx(0.5, abs=0.02)  # without the correction
    scores = [iso_score(_normal(384, 384, seed)).value for seed in range(3)]
    assert np.mean(scores) == pytest.approx(1.0, abs=0.02)


def test_the_isoscore_has_its_closed_form_on_a_known_spectrum() -> None:
    spectrum = np.array([4.0, 2.0, 1.0, 1.0])
    vectors = _normal(200_000, 4) * np.sqrt(spectrum) @ _orthogonal(4)
    expected = (spectrum.sum() ** 2 / np.sum(spectrum**2) - 1) / 3
    assert iso_score(vectors).value == pytest.approx(expected, abs=0.01)


def test_the_isoscore_equals_the_formula_as_written() -> None:
    vectors = _normal(50, 6) * np.arange(1, 7)
    covariance = np.cov(vectors.T)
    trace = np.trace(covariance)
    norm = np.linalg.norm(covariance) ** 2 - trace**2 / 49
    found = iso_score(vectors)
    assert found.value == pytest.approx((trace**2 / norm - 1) / 5, rel=1e-12)
    assert found.rows == 50


def test_one_direction_scores_zero_and_no_variance_scores_zero() -> None:
    assert iso_score(_normal(10_000, 1) * np.ones(8)).value == pytest.approx(0.0, abs=1e-3)
    assert iso_score(np.ones((5, 3))).value == 0.0
    assert iso_score(_normal(9, 1)).value == 1.0
    assert 0.0 <= iso_score(_normal(2, 50)).value <= 1.0


def test_the_effective_rank_counts_even_directions() -> None:
    corners = np.vstack([np.eye(5), -np.eye(5)])
    assert effective_rank(corners) == pytest.approx(5.0)
    assert effective_rank(np.hstack([corners, np.zeros((10, 7))]) @ _orthogonal(12)) == (
        pytest.approx(5.0)
    )
    assert effective_rank(_normal(30, 1) * np.ones(4)) == pytest.approx(1.0)
    assert effective_rank(np.ones((4, 3))) == 0.0


def test_the_effective_rank_is_the_exponential_of_an_entropy() -> None:
    scale = np.sqrt([0.7, 0.2, 0.1])
    corners = np.vstack([np.diag(scale), -np.diag(scale)])
    entropy = -sum(p * np.log(p) for p in (0.7, 0.2, 0.1))
    assert effective_rank(corners) == pytest.approx(np.exp(entropy))


def test_alignment_equals_the_loop_and_its_closed_forms() -> None:
    anchors, positives = _unit(7, 3), _unit(7, 3, 1)
    loop = np.mean([np.linalg.norm(a - p) ** 2 for a, p in zip(anchors, positives, strict=True)])
    assert alignment(anchors, positives) == pytest.approx(loop)
    assert alignment(anchors, anchors) == 0.0
    assert alignment(anchors, -anchors) == pytest.approx(4.0)


@pytest.mark.parametrize("block_rows", [1, 4, 11, 500])
def test_uniformity_equals_the_loop_for_every_block_size(block_rows: int) -> None:
    vectors = _unit(11, 4)
    loop = [
        np.exp(-2 * np.linalg.norm(vectors[i] - vectors[k]) ** 2)
        for i in range(11)
        for k in range(11)
        if i != k
    ]
    assert uniformity(vectors, block_rows=block_rows) == pytest.approx(np.log(np.mean(loop)))


def test_uniformity_is_zero_for_one_point_and_minus_8_for_two_opposite_ones() -> None:
    assert uniformity(np.tile([[1.0, 0.0]], (5, 1))) == pytest.approx(0.0)
    assert uniformity(np.array([[1.0, 0.0], [-1.0, 0.0]])) == pytest.approx(-8.0)


def test_variance_cv_equals_its_definition_and_vanishes_for_even_dimensions() -> None:
    vectors = _normal(40, 5) * np.arange(1, 6)
    variance = [np.mean((vectors[:, j] - vectors[:, j].mean()) ** 2) for j in range(5)]
    assert variance_cv(vectors) == pytest.approx(np.std(variance) / np.mean(variance))
    assert variance_cv(np.vstack([np.eye(4), -np.eye(4)])) == pytest.approx(0.0)
    assert variance_cv(np.ones((3, 2))) == 0.0


def test_cross_correlation_equals_the_correlation_matrix() -> None:
    vectors = _normal(60, 6) @ _normal(6, 6, 2)
    correlation = np.abs(np.corrcoef(vectors.T))
    found = cross_correlation(vectors, [1, 2, 5, 6])
    assert set(found) == {1, 2, 5}  # the full width leaves nothing out
    for width, measured in found.items():
        assert measured.largest == pytest.approx(correlation[:width, width:].max())
        assert measured.mean == pytest.approx(correlation[:width, width:].mean())


def test_a_copied_dimension_correlates_fully_and_a_constant_one_not_at_all() -> None:
    x = _normal(20, 1)
    copied = cross_correlation(np.hstack([x, -3 * x]), [1])[1]
    assert copied.largest == pytest.approx(1.0)
    constant = cross_correlation(np.hstack([x, np.ones((20, 1))]), [1])[1]
    assert constant.largest == 0.0


def test_mean_shift_equals_the_loop_and_its_closed_forms() -> None:
    vectors, reference = _normal(6, 4), _normal(6, 4, 1)
    loop = [
        1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        for a, b in zip(vectors, reference, strict=True)
    ]
    assert mean_shift(vectors, reference) == pytest.approx(np.mean(loop))
    assert mean_shift(3 * vectors, vectors) == pytest.approx(0.0, abs=1e-12)
    assert mean_shift(-vectors, vectors) == pytest.approx(2.0)
    assert mean_shift(np.zeros((2, 4)), vectors[:2]) == 1.0


def test_linear_cka_ignores_rotation_scale_and_offset() -> None:
    vectors = _normal(50, 5)
    assert linear_cka(vectors, 3 * vectors @ _orthogonal(5) + 2) == pytest.approx(1.0)
    assert linear_cka(vectors, np.ones((50, 2))) == 0.0


def test_linear_cka_equals_the_kernel_definition() -> None:
    x, y = _normal(12, 3), _normal(12, 5, 1)
    centring = np.eye(12) - 1 / 12
    k, h = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    expected = np.sum(k * h) / (np.linalg.norm(k) * np.linalg.norm(h))
    assert linear_cka(x, y) == pytest.approx(expected)


def test_source_bias_is_the_distance_from_the_median_in_the_active_dimensions() -> None:
    basis = _orthogonal(3)
    centre = np.array([1.0, 2.0, 3.0])
    space = Eigenspace(np.array([3.0, 2.0, 1.0]), basis, centre, np.array([True, True, False]))
    means = np.array([[3.0, 4.0, 50.0], [0.0, 0.0, -9.0], [0.0, 0.0, 7.0]])
    z = np.vstack([means + step for step in (-1.0, 1.0)])
    source = np.array([0, 1, 2, 0, 1, 2])
    bias = source_bias(centre + z @ basis.T, source, 4, space)
    np.testing.assert_allclose(bias[:3], [5.0, 0.0, 0.0], atol=1e-12)
    assert np.isnan(bias[3])


@pytest.mark.parametrize(
    "measure", [iso_score, effective_rank, uniformity, variance_cv, lambda x: linear_cka(x, x)]
)
@pytest.mark.parametrize(
    "vectors", [np.zeros((1, 3)), np.zeros((0, 3)), np.zeros(4), np.array([[0.0], [np.nan]])]
)
def test_input_without_a_geometry_is_refused(measure, vectors: np.ndarray) -> None:
    with pytest.raises(DataError):
        measure(vectors)


def test_sides_that_do_not_match_are_refused() -> None:
    for measure in (alignment, mean_shift):
        with pytest.raises(DataError, match="equal sets"):
            measure(np.zeros((2, 3)), np.zeros((3, 3)))
        with pytest.raises(DataError, match="equal sets"):
            measure(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(DataError, match="same rows"):
        linear_cka(np.zeros((2, 3)), np.zeros((3, 3)))
    with pytest.raises(DataError, match="at least one dimension"):
        cross_correlation(_normal(3, 3), [0])
