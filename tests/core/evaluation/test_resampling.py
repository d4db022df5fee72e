"""Tests of the resampling statistics against the rows written out as often as they were drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from domain_embeddings.core.evaluation import resampling
from domain_embeddings.core.evaluation.resampling import (
    average_precision_statistic,
    draw_counts,
    mean_statistic,
    spearman_statistic,
)

N, REPLICATES = 60, 40


@pytest.fixture
def indices():
    return np.random.default_rng(1).integers(N, size=(REPLICATES, N))


@pytest.fixture(params=[False, True], ids=["distinct", "tied"])
def scores(request):
    values = np.random.default_rng(2).normal(size=N)
    return np.round(values, 0) if request.param else values


@pytest.fixture
def labels():
    return np.random.default_rng(3).integers(2, size=N)


def test_counts_say_how_often_each_row_was_drawn():
    counts = draw_counts(np.array([[0, 0, 2], [1, 1, 1]]))
    assert counts.tolist() == [[2, 0, 1], [0, 3, 0]]


def test_mean_equals_the_mean_of_the_drawn_rows(indices, scores):
    expected = [scores[drawn].mean() for drawn in indices]
    np.testing.assert_allclose(mean_statistic(scores)(draw_counts(indices)), expected, atol=1e-12)


def test_rows_without_a_value_are_left_out_of_the_mean(indices, scores):
    values = np.where(np.arange(N) % 3, scores, np.nan)
    expected = [np.nanmean(values[drawn]) for drawn in indices]
    np.testing.assert_allclose(mean_statistic(values)(draw_counts(indices)), expected, atol=1e-12)
    assert np.isnan(mean_statistic([np.nan, 1.0])(np.array([[2, 0]])))


def test_average_precision_equals_that_of_the_drawn_rows(indices, scores, labels):
    expected = [average_precision_score(labels[drawn], scores[drawn]) for drawn in indices]
    found = average_precision_statistic([scores], labels)(draw_counts(indices))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_average_precision_takes_the_best_measure_of_each_resample(indices, scores, labels):
    other = labels + np.random.default_rng(4).normal(size=N)
    expected = [
        max(average_precision_score(labels[d], measure[d]) for measure in (scores, other))
        for d in indices
    ]
    found = average_precision_statistic([scores, other], labels)(draw_counts(indices))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_resample_without_a_positive_scores_zero():
    found = average_precision_statistic([[0.1, 0.9]], [0, 1])(np.array([[2, 0], [1, 1]]))
    assert found.tolist() == [0.0, 1.0]


def test_spearman_equals_that_of_the_drawn_rows(indices, scores):
    gold = np.round(scores + np.random.default_rng(5).normal(size=N), 1)
    expected = [spearmanr(gold[drawn], scores[drawn])[0] for drawn in indices]
    found = spearman_statistic(gold, scores)(draw_counts(indices))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_spearman_of_a_constant_resample_is_undefined():
    found = spearman_statistic([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])(np.array([[3, 0, 0], [1, 1, 1]]))
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(1.0)


@pytest.mark.parametrize("block", [1, 7 * N, 10**9])
def test_blocks_change_nothing(monkeypatch, indices, scores, labels, block):
    counts = draw_counts(indices)
    statistic = average_precision_statistic([scores], labels)
    whole = statistic(counts)
    monkeypatch.setattr(resampling, "_BLOCK_ELEMENTS", block)
    np.testing.assert_allclose(statistic(counts), whole, atol=1e-14)


def test_no_resamples_give_no_scores(scores):
    assert mean_statistic(scores)(np.empty((0, N), dtype=np.uint16)).shape == (0,)
