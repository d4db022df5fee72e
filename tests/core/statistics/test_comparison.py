"""Paired differences over rows and seeds: closed forms, coverage of a known truth, correction."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from domain_embeddings.core.statistics.bootstrap import (
    bootstrap_means,
    interval,
    resample_indices,
)
from domain_embeddings.core.statistics.comparison import (
    SeedScores,
    holm,
    paired_difference,
    seed_noise,
    two_sided_p,
)


def rejected(p: np.ndarray, alpha: float) -> np.ndarray:
    """Holm's procedure as it is told: step down until one p-value is too large."""
    kept = np.zeros(len(p), dtype=bool)
    for k, place in enumerate(np.argsort(p)):
        if p[place] > alpha / (len(p) - k):
            break
        kept[place] = True
    return kept


def test_holm_rejects_what_the_procedure_rejects_at_every_level() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        p = generator.random(8) ** 4
        for alpha in (0.01, 0.05, 0.2):
            np.testing.assert_array_equal(holm(p) <= alpha, rejected(p, alpha))


def test_holm_of_known_values_in_any_order_and_with_gaps() -> None:
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.04, np.nan, 0.01]), [0.04, np.nan, 0.02])
    assert holm([]).shape == (0,)
    np.testing.assert_allclose(holm([0.3]), [0.3])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])


def test_a_p_value_counts_replicates_beyond_zero_and_is_never_zero() -> None:
    assert two_sided_p(np.arange(1.0, 100.0)) == pytest.approx(2 / 100)
    assert two_sided_p([-1.0, 1.0, 2.0, 3.0]) == pytest.approx(4 / 5)
    assert two_sided_p([-1.0, -2.0, 3.0, -4.0]) == two_sided_p([1.0, 2.0, -3.0, 4.0])
    assert two_sided_p(np.zeros(9)) == 1.0
    assert two_sided_p([np.nan, 1.0, 1.0]) == pytest.approx(2 / 3)
    assert np.isnan(two_sided_p([]))


def test_p_values_of_equal_models_are_about_uniform() -> None:
    generator = np.random.default_rng(1)
    indices = resample_indices(60, 199, seed=0)
    found = []
    for _ in range(300):
        means = bootstrap_means(generator.standard_normal(60), indices)
        found.append(two_sided_p(means))
    assert 0.02 <= np.mean(np.array(found) <= 0.05) <= 0.09
    assert 0.42 <= np.mean(np.array(found) <= 0.5) <= 0.58


def test_of_one_seed_the_difference_is_that_of_the_replicates() -> None:
    generator = np.random.default_rng(2)
    left, right = generator.random((2, 400))
    found = paired_difference(SeedScores.single(0.7, left), SeedScores.single(0.4, right), 0.9)
    assert found.value == pytest.approx(0.3)
    assert (found.low, found.high) == interval(left - right, 0.9)
    assert found.p == two_sided_p(left - right)
    assert found.seeds == 1


def test_without_noise_of_rows_the_interval_is_the_one_of_student() -> None:
    values = np.array([0.3, 0.5, 0.4])
    left = SeedScores(values, np.repeat(values[:, None], 4_000, axis=1))
    right = SeedScores.single(0.0, np.zeros(4_000))
    found = paired_difference(left, right)
    half = student.ppf(0.975, df=2) * values.std(ddof=1) / np.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.4 - half, 0.4 + half), abs=2e-3)
    assert found.p == pytest.approx(
        2 * student.sf(0.4 / (values.std(ddof=1) / np.sqrt(3)), 2), abs=2e-3
    )


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_over_seeds_the_interval_covers_the_truth_about_as_often_as_it_says(seeds: int) -> None:
    """Rows and seeds both move the scores; picking among the seeds would cover far less."""
    generator = np.random.default_rng(seeds)
    truth, rows, trials = 0.2, 40, 250
    indices = resample_indices(rows, 199, seed=0)
    covered = picked = 0
    for _ in range(trials):
        by_row = 0.5 * generator.standard_normal(rows)
        by_seed = 0.1 * generator.standard_normal((seeds, 1))
        outcomes = truth + by_row + by_seed + 0.2 * generator.standard_normal((seeds, rows))
        left = SeedScores(outcomes.mean(axis=1), bootstrap_means(outcomes.T, indices).T)
        found = paired_difference(left, SeedScores.single(0.0, np.zeros(199)), 0.95)
        covered += found.low <= truth <= found.high
        some = generator.integers(seeds, size=(199, seeds))
        plain = left.replicates[some, np.arange(199)[:, None]].mean(axis=1)
        low, high = interval(plain, 0.95)
        picked += low <= truth <= high
    assert 0.92 <= covered / trials <= 0.995
    assert covered > picked


def test_seed_noise_has_the_standard_error_of_the_mean_as_its_scale() -> None:
    values = np.array([1.0, 2.0, 4.0, 3.0])
    noise = seed_noise(values, 2_000)
    quartile = student.ppf(0.75, df=3) * values.std(ddof=1) / 2
    np.testing.assert_allclose(
        np.quantile(noise, [0.25, 0.5, 0.75]), [-quartile, 0, quartile], atol=1e-3
    )
    assert not seed_noise(values[:1], 5).any()
    assert seed_noise(values, 0).shape == (0,)
    assert not seed_noise(np.full(3, 0.5), 5).any()


def test_without_replicates_there_is_a_value_and_no_claim() -> None:
    found = paired_difference(SeedScores.single(0.5, []), SeedScores.single(0.2, []))
    assert found.value == pytest.approx(0.3)
    assert np.isnan([found.low, found.high, found.p]).all()


def test_sides_that_do_not_pair_are_refused() -> None:
    one, two, three = (SeedScores(np.zeros(n), np.zeros((n, 5))) for n in (1, 2, 3))
    with pytest.raises(ValueError, match="2 on the left, 3 on the right"):
        paired_difference(two, three)
    assert paired_difference(three, one).seeds == 3
    with pytest.raises(ValueError, match="bootstrap differs"):
        paired_difference(one, SeedScores.single(0.0, np.zeros(6)))
