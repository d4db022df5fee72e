"""Shrinkage: closed forms of every mode, when it is empty, and a planted truth it must find."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.statistics.eigenspace import Eigenspace, fit_eigenspace
from domain_embeddings.core.statistics.moments import Moments, accumulate
from domain_embeddings.core.statistics.shrinkage import (
    Shrinkage,
    fit_shrinkage,
    shrink,
    shrunk_mask,
)
from domain_embeddings.core.statistics.task_variance import (
    TaskVariance,
    absolute_eps,
    measure_task_variance,
)

MODES = ["translate", "scale", "printed"]
ETA = 0.7
# One task-variant dimension (0) and two quiet ones; the bands are hand-made.
MEANS = np.array([[2.0, 0.0, 0.1], [-4.0, 0.0, 0.1], [0.0, 0.0, 0.1], [0.4, 0.0, 0.1]])
HALF_WIDTH = 1.0


def _orthogonal(width: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def _space(width: int = 3) -> Eigenspace:
    return Eigenspace(
        np.arange(width, 0, -1.0), _orthogonal(width), np.arange(width) / 10, np.ones(width, bool)
    )


def _variance(means: np.ndarray = MEANS, median: float = 0.0) -> TaskVariance:
    width = means.shape[1]
    return TaskVariance(
        source_means=means,
        median=np.array([median, *means[0, 1:]]),
        variance=np.array([5.0, *[0.0] * (width - 1)]),
        half_width=np.array([HALF_WIDTH, *[0.0] * (width - 1)]),
        threshold=1.0,
        active=np.ones(width, dtype=bool),
        present=np.ones(len(means), dtype=bool),
    )


def _rows(space: Eigenspace, means: np.ndarray, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Draw vectors whose source means in the eigenspace are exactly ``means``."""
    generator = np.random.default_rng(1)
    source = np.repeat(np.arange(len(means)), n)
    z = generator.standard_normal((len(source), means.shape[1]))
    for s in range(len(means)):
        z[source == s] += means[s] - z[source == s].mean(axis=0)
    return space.mean + z @ space.eigenvectors.T, source


def _coordinates(space: Eigenspace, vectors: np.ndarray) -> np.ndarray:
    return (vectors - space.mean) @ space.eigenvectors


def test_only_sources_outside_the_band_of_a_variant_dimension_are_shrunk() -> None:
    assert shrunk_mask(_variance())[:, 0].tolist() == [True, True, False, False]
    assert not shrunk_mask(_variance())[:, 1:].any()


def test_the_edge_of_the_band_belongs_to_the_outside() -> None:
    means = np.array([[HALF_WIDTH], [-HALF_WIDTH], [HALF_WIDTH * 0.999]])
    assert shrunk_mask(_variance(means))[:, 0].tolist() == [True, True, False]


def test_translate_moves_the_source_mean_by_exactly_eta_of_its_distance() -> None:
    space, variance = _space(), _variance()
    vectors, source = _rows(space, MEANS)
    target = shrink(fit_shrinkage(variance, space, "translate", ETA), vectors, source)
    moved = _coordinates(space, target) - _coordinates(space, vectors)
    # Distances to the edge: 2 -> 1 and -4 -> -1; the others are inside the band.
    for s, expected in enumerate([ETA * -1.0, ETA * 3.0, 0.0, 0.0]):
        np.testing.assert_allclose(moved[source == s, 0], expected, atol=1e-12)
    np.testing.assert_allclose(moved[:, 1:], 0.0, atol=1e-12)


def test_translate_leaves_the_covariance_inside_a_source_unchanged() -> None:
    space = _space()
    vectors, source = _rows(space, MEANS)
    target = shrink(fit_shrinkage(_variance(), space, "translate", 1.0), vectors, source)
    for s in range(len(MEANS)):
        before, after = np.cov(vectors[source == s].T), np.cov(target[source == s].T)
        np.testing.assert_allclose(after, before, atol=1e-12)


def test_full_translation_ends_on_the_edge_of_the_band() -> None:
    space = _space()
    vectors, source = _rows(space, MEANS)
    target = shrink(fit_shrinkage(_variance(), space, "translate", 1.0), vectors, source)
    means = [_coordinates(space, target)[source == s, 0].mean() for s in range(4)]
    np.testing.assert_allclose(means, [1.0, -1.0, 0.0, 0.4], atol=1e-12)


def test_scale_has_its_closed_form_for_both_signs() -> None:
    found = fit_shrinkage(_variance(), _space(), "scale", ETA, eps=1e-15)
    np.testing.assert_allclose(
        found.scale[:, 0], [1 + ETA * -1 / 2, 1 + ETA * 3 / -4, 1, 1], rtol=1e-12
    )
    assert not found.offset.any()


def test_scale_moves_the_source_mean_like_translate_but_changes_the_variance() -> None:
    space = _space()
    vectors, source = _rows(space, MEANS)
    z = _coordinates(
        space, shrink(fit_shrinkage(_variance(), space, "scale", ETA), vectors, source)
    )
    shifted = shrink(fit_shrinkage(_variance(), space, "translate", ETA), vectors, source)
    means = [z[source == s].mean(axis=0) for s in range(4)]
    expected = [_coordinates(space, shifted)[source == s].mean(axis=0) for s in range(4)]
    np.testing.assert_allclose(means, expected, atol=1e-6)
    narrowed = z[source == 0, 0].std() / _coordinates(space, vectors)[source == 0, 0].std()
    assert narrowed == pytest.approx(1 - ETA / 2)


def test_printed_agrees_with_scale_for_positive_means_and_leaves_negative_ones_untouched() -> None:
    space = _space()
    vectors, source = _rows(space, MEANS)
    printed = fit_shrinkage(_variance(), space, "printed", ETA)
    scaled = fit_shrinkage(_variance(), space, "scale", ETA)
    assert printed.shrunk[1, 0]  # found to be biased ...
    assert printed.scale[0, 0] == pytest.approx(scaled.scale[0, 0])
    assert printed.scale[1, 0] == 1.0  # ... and left alone all the same
    assert scaled.scale[1, 0] < 1.0
    target = shrink(printed, vectors, source)
    np.testing.assert_array_equal(target[source == 1], vectors[source == 1])


def test_printed_moves_a_negative_mean_away_from_the_edge() -> None:
    # The median is -4, the band ends at -3, and the mean -1 lies above it: the way to the edge
    # leads away from zero, the printed factor towards it.
    means = np.array([[-1.0], [-4.0], [-4.0]])
    variance = _variance(means, median=-4.0)
    space = _space(1)
    assert fit_shrinkage(variance, space, "printed", ETA).scale[0, 0] == 0.0
    assert fit_shrinkage(variance, space, "scale", ETA).scale[0, 0] == 1.0
    assert fit_shrinkage(variance, space, "translate", ETA).offset[0, 0] == pytest.approx(-2 * ETA)


@pytest.mark.parametrize("mode", ["scale", "printed"])
def test_factors_are_clipped_to_zero_and_one(mode: str) -> None:
    # The median is far below zero, so the way to the edge crosses zero: alpha would be negative.
    means = np.array([[1.0], [-9.0], [-9.0]])
    found = fit_shrinkage(_variance(means, median=-9.0), _space(1), mode, ETA)
    assert found.scale.min() == 0.0
    assert found.scale.max() == 1.0


@pytest.mark.parametrize("eps", [1e-8, 1e-300])
@pytest.mark.parametrize("mode", MODES)
def test_a_mean_of_zero_far_from_the_median_gives_finite_numbers(mode: str, eps: float) -> None:
    means = np.array([[0.0], [5.0], [5.0], [0.0], [0.0], [5.0], [5.0]])
    found = fit_shrinkage(_variance(means, median=5.0), _space(1), mode, ETA, eps)
    assert found.shrunk[0, 0]
    assert np.isfinite(found.scale).all()
    assert np.isfinite(found.offset).all()
    if mode == "scale":
        assert found.scale[0, 0] == 1.0  # no factor moves zero


def test_eps_guards_the_division_relative_to_the_median_magnitude() -> None:
    found = fit_shrinkage(_variance(), _space(), "scale", ETA, eps=0.5)
    guard = absolute_eps(MEANS, np.ones(3, dtype=bool), 0.5)
    assert guard == pytest.approx(0.05)
    assert found.scale[0, 0] == pytest.approx(1 + ETA * -1 / (2 + guard))


@pytest.mark.parametrize("mode", MODES)
def test_shrink_equals_a_loop_over_rows_and_dimensions(mode: str) -> None:
    space, variance = _space(), _variance()
    vectors, source = _rows(space, MEANS, n=5)
    shrinkage = fit_shrinkage(variance, space, mode, ETA)
    expected = vectors.copy()
    for row, s in enumerate(source):
        for k, j in enumerate(shrinkage.columns):
            z = space.eigenvectors[:, j] @ (vectors[row] - space.mean)
            change = shrinkage.offset[s, k] + (shrinkage.scale[s, k] - 1) * z
            expected[row] += change * space.eigenvectors[:, j]
    np.testing.assert_allclose(shrink(shrinkage, vectors, source), expected, atol=1e-12)


def _assert_empty(shrinkage: Shrinkage, sources: int, width: int, reason: str) -> None:
    assert reason in shrinkage.note
    assert "plain distillation to the reference" in shrinkage.note
    assert shrinkage.columns.shape == (0,)
    assert shrinkage.basis.shape == (width, 0)
    assert shrinkage.offset.shape == shrinkage.scale.shape == (sources, 0)
    assert shrinkage.shrunk.shape == (sources, width)
    assert not shrinkage.shrunk.any()
    vectors = np.random.default_rng(0).standard_normal((6, width)).astype("float32")
    np.testing.assert_array_equal(shrink(shrinkage, vectors, np.zeros(6, dtype=int)), vectors)


@pytest.mark.parametrize("mode", MODES)
def test_without_strength_the_target_is_the_reference(mode: str) -> None:
    _assert_empty(fit_shrinkage(_variance(), _space(), mode, 0.0), 4, 3, "eta is 0")


def test_with_one_source_the_target_is_the_reference() -> None:
    moments = accumulate(
        [np.random.default_rng(0).standard_normal((9, 3))], [np.zeros(9, dtype=int)], 1
    )
    _assert_empty(_fit(moments, 1.0)[0], 1, 3, "only one source")


def test_with_one_source_that_has_rows_the_target_is_the_reference() -> None:
    moments = accumulate(
        [np.random.default_rng(0).standard_normal((9, 3))], [np.ones(9, dtype=int)], 3
    )
    _assert_empty(_fit(moments, 1.0)[0], 3, 3, "only one source")


def test_without_active_dimensions_the_target_is_the_reference() -> None:
    moments = accumulate([np.ones((4, 3))], [np.array([0, 1, 0, 1])], 2)
    _assert_empty(_fit(moments, 1.0)[0], 2, 3, "do not vary")


def test_with_two_sources_and_gamma_one_the_target_is_the_reference() -> None:
    # Both lie at the same distance from their median, which is then the half-width of the band.
    source = np.arange(60) % 2
    vectors = np.random.default_rng(0).standard_normal((60, 5))
    vectors[source == 1, 0] += 3.0
    moments = accumulate([vectors], [source], 2)
    _assert_empty(_fit(moments, 1.0)[0], 2, 5, "edge of its band")
    assert _fit(moments, 0.5)[0].columns.size  # a narrower band lets them move


def test_equal_sources_leave_the_reference_alone() -> None:
    block = np.random.default_rng(0).standard_normal((20, 4))
    moments = accumulate([block] * 3, [np.full(20, s) for s in range(3)], 3)
    _assert_empty(_fit(moments, 1.0)[0], 3, 4, "no source stands out")


@pytest.mark.parametrize(("mode", "eta"), [("Translate", 0.5), ("scale", -0.1), ("scale", 1.1)])
def test_bad_arguments_are_refused(mode: str, eta: float) -> None:
    with pytest.raises(ParameterError, match=r"reze\.(shrinkage|eta)"):
        fit_shrinkage(_variance(), _space(), mode, eta)  # type: ignore[arg-type]


def _fit(
    moments: Moments, gamma: float, mode: str = "translate"
) -> tuple[Shrinkage, TaskVariance, Eigenspace]:
    space = fit_eigenspace(moments.covariance, moments.global_mean, rho=1.0)
    variance = measure_task_variance(moments, space, gamma)
    return fit_shrinkage(variance, space, mode, ETA), variance, space  # type: ignore[arg-type]


# --- planted truth -------------------------------------------------------------------------------
#
# Twelve sources. Sources 0 to 7 differ by +-SMALL in each of seven quiet directions, in mutually
# orthogonal patterns. Sources 8 and 9 are biased by +-LARGE along one planted direction, 10 and 11
# along another. Each source holds its mean +- SPREAD[j] along every direction j, so that the
# covariance is diagonal in these directions, without sampling noise.

SMALL, LARGE, WIDTH = 0.05, 1.0, 9
PLANTED = {3: (8, 9), 6: (10, 11)}
SPREAD = np.linspace(9.0, 5.0, WIDTH)


def _hadamard(order: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < order:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def _planted_means() -> np.ndarray:
    means = np.zeros((12, WIDTH))
    quiet = [j for j in range(WIDTH) if j not in PLANTED]
    means[:8, quiet] = SMALL * _hadamard(8)[:, 1:]
    for direction, (up, down) in PLANTED.items():
        means[up, direction], means[down, direction] = LARGE, -LARGE
    return means


def _planted_rows(directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    spread = np.vstack([np.diag(SPREAD), -np.diag(SPREAD)])
    z = (_planted_means()[:, None, :] + spread).reshape(-1, WIDTH)
    centre = np.linspace(-1.0, 1.0, WIDTH)
    return centre + z @ directions.T, np.repeat(np.arange(12), 2 * WIDTH)


@pytest.mark.parametrize("rotated", [False, True], ids=["axes", "random orthogonal basis"])
def test_planted_directions_are_found_and_no_other_and_shrunk_by_the_stated_amount(
    rotated: bool,
) -> None:
    directions = _orthogonal(WIDTH, seed=7) if rotated else np.eye(WIDTH)
    vectors, source = _planted_rows(directions)
    shrinkage, _, space = _fit(accumulate([vectors], [source], 12), gamma=1.0)

    assert shrinkage.note == ""
    overlap = np.abs(directions.T @ shrinkage.basis)
    assert overlap.shape[1] == len(PLANTED)
    assert sorted(overlap.argmax(axis=0).tolist()) == sorted(PLANTED)
    np.testing.assert_allclose(overlap.max(axis=0), 1.0, atol=1e-9)
    found = {
        overlap[:, k].argmax(): set(np.flatnonzero(shrinkage.shrunk[:, j]).tolist())
        for k, j in enumerate(shrinkage.columns)
    }
    assert found == {direction: set(pair) for direction, pair in PLANTED.items()}

    # Two of twelve sources are biased, so the half-width is LARGE / 6 and the edge is there too.
    moved = (shrink(shrinkage, vectors, source) - vectors) @ directions
    expected = np.zeros((12, WIDTH))
    for direction, (up, down) in PLANTED.items():
        expected[up, direction] = -ETA * LARGE * 5 / 6
        expected[down, direction] = ETA * LARGE * 5 / 6
    np.testing.assert_allclose(moved, expected[source], atol=1e-9)
    assert space.active.all()


def test_a_planted_bias_is_found_among_sampled_tasks() -> None:
    # Sixteen tasks share one distribution; task 2 is biased along one known direction and task 9
    # along another. gamma is far above what sampling reaches, far below what the bias reaches.
    generator = np.random.default_rng(11)
    directions = _orthogonal(24, seed=3)
    source = np.arange(64_000) % 16
    z = generator.standard_normal((64_000, 24)) * np.linspace(3.0, 1.0, 24)
    z[source == 2, 4] += 1.0
    z[source == 9, 15] -= 1.0
    vectors = z @ directions.T
    shrinkage, variance, _ = _fit(accumulate([vectors], [source], 16), gamma=8.0)

    overlap = np.abs(directions.T @ shrinkage.basis)
    assert sorted(overlap.argmax(axis=0).tolist()) == [4, 15]
    assert (overlap.max(axis=0) > 0.9).all()
    assert np.flatnonzero(shrinkage.shrunk.any(axis=1)).tolist() == [2, 9]

    target = shrink(shrinkage, vectors, source)
    for s, j in ((2, 4), (9, 15)):
        k = int(overlap[j].argmax())
        column = shrinkage.columns[k]
        mean = variance.source_means[s, column]
        edge = variance.median[column] + np.sign(mean) * variance.half_width[column]
        rows = source == s
        moved = (target[rows] - vectors[rows]) @ shrinkage.basis[:, k]
        np.testing.assert_allclose(moved, ETA * (edge - mean), atol=1e-9)
        after = ((target[rows] - shrinkage.mean) @ shrinkage.basis[:, k]).mean()
        assert abs(after) < abs(mean)
