"""Tests of the sampled training pairs."""

from __future__ import annotations

import pandas as pd
import pytest

from domain_embeddings.core.evaluation.sampling import equal_shares, sample_pairs


@pytest.fixture
def pairs():
    tasks = ["large"] * 500 + ["small"] * 10 + ["medium"] * 100
    return pd.DataFrame({"pair_id": range(610), "task": tasks, "anchor": "a", "positive": "b"})


@pytest.mark.parametrize(
    ("sizes", "count", "shares"),
    [
        ([500, 10, 100], 60, [25, 10, 25]),
        ([500, 10, 100], 1_000, [500, 10, 100]),
        ([5, 5], 4, [2, 2]),
        ([5, 5], 5, [3, 2]),
        ([5], 0, [0]),
        ([], 7, []),
    ],
)
def test_shares_are_as_equal_as_the_sizes_allow(sizes, count, shares):
    assert equal_shares(sizes, count) == shares


def test_small_tasks_are_taken_whole_and_the_rest_is_shared(pairs):
    drawn = sample_pairs(pairs, 60, seed=0)
    assert drawn["task"].value_counts().to_dict() == {"large": 25, "medium": 25, "small": 10}
    assert drawn["pair_id"].is_monotonic_increasing
    assert drawn["pair_id"].is_unique


def test_the_same_seed_draws_the_same_pairs_whatever_the_row_order(pairs):
    shuffled = pairs.sample(frac=1, random_state=3)
    expected = sample_pairs(pairs, 60, seed=0)["pair_id"].tolist()
    assert sample_pairs(shuffled, 60, seed=0)["pair_id"].tolist() == expected


def test_another_seed_draws_other_pairs(pairs):
    first, second = (sample_pairs(pairs, 60, seed=seed)["pair_id"].tolist() for seed in (0, 1))
    assert first != second


def test_a_new_task_leaves_the_draws_of_the_others_alone(pairs):
    without = sample_pairs(pairs[pairs["task"] != "small"], 50, seed=0)
    with_small = sample_pairs(pairs, 60, seed=0)
    kept = with_small[with_small["task"] != "small"]
    assert kept["pair_id"].tolist() == without["pair_id"].tolist()
