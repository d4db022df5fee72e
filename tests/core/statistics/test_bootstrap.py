"""The bootstrap: shared rows, naive equality, coverage, and paired differences."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.statistics import bootstrap as module
from domain_embeddings.core.statistics.bootstrap import (
    bootstrap,
    bootstrap_means,
    interval,
    resample_indices,
)


def test_indices_are_rows_and_repeat_with_the_seed() -> None:
    indices = resample_indices(7, 500, seed=3)
    assert indices.shape == (500, 7)
    assert indices.dtype == np.int32
    assert set(np.unique(indices)) == set(range(7))
    np.testing.assert_array_equal(indices, resample_indices(7, 500, seed=3))
    assert (indices != resample_indices(7, 500, seed=4)).any()


@pytest.mark.parametrize("shape", [(9,), (9, 3)])
@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
def test_means_equal_the_loop_for_every_block_size(
    shape: tuple[int, ...], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", block_bytes)
    values = np.random.default_rng(0).random(shape)
    indices = resample_indices(9, 40, seed=0)
    loop = np.array([values[rows].mean(axis=0) for rows in indices])
    np.testing.assert_allclose(bootstrap_means(values, indices), loop, rtol=1e-12)


def test_the_generic_bootstrap_of_a_mean_equals_the_fast_one() -> None:
    values = np.random.default_rng(0).random(30)
    indices = resample_indices(30, 50, seed=0)
    generic = bootstrap(lambda rows: float(values[rows].mean()), indices)
    np.testing.assert_allclose(generic, bootstrap_means(values, indices), rtol=1e-12)


def test_the_interval_is_made_of_percentiles() -> None:
    replicates = np.random.default_rng(0).permutation(1001) / 1000
    assert interval(replicates, 0.9) == pytest.approx((0.05, 0.95))


def test_undefined_replicates_are_left_out() -> None:
    assert interval(np.array([np.nan, 0.5, 0.5]), 0.95) == (0.5, 0.5)
    assert np.isnan(interval(np.array([np.nan]), 0.95)).all()
    assert np.isnan(interval(np.zeros(0), 0.95)).all()


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        values = generator.standard_normal(80)
        low, high = interval(bootstrap_means(values, resample_indices(80, 300, trial)), 0.9)
        covered += low <= 0.0 <= high
    assert 0.85 <= covered / 300 <= 0.94


def test_sharing_rows_narrows_the_interval_of_a_difference() -> None:
    generator = np.random.default_rng(0)
    reference = generator.standard_normal(200)
    adapted = reference + 0.1 + 0.05 * generator.standard_normal(200)
    shared = resample_indices(200, 1_000, seed=0)
    other = resample_indices(200, 1_000, seed=1)
    paired = bootstrap_means(adapted, shared) - bootstrap_means(reference, shared)
    unpaired = bootstrap_means(adapted, shared) - bootstrap_means(reference, other)
    assert interval(paired, 0.95)[0] > 0.0
    assert interval(unpaired, 0.95)[0] < 0.0
    np.testing.assert_allclose(paired, bootstrap_means(adapted - reference, shared), atol=1e-12)


def test_one_row_has_an_interval_of_no_width() -> None:
    assert interval(bootstrap_means(np.array([0.3]), resample_indices(1, 10, 0)), 0.95) == (
        0.3,
        0.3,
    )


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="rows to draw from"):
        resample_indices(0, 10, 0)
    with pytest.raises(ValueError, match="not drawn for 4 rows"):
        bootstrap_means(np.zeros(4), resample_indices(5, 10, 0))
    for confidence in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            interval(np.zeros(3), confidence)
