"""Tests of what vectors cost and are worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from task_data import BANK_WIDTH, make_bank, pairs, records, specs

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.quantisation import calibrate, quantiser
from domain_embeddings.core.evaluation.costs import (
    CostSettings,
    Storage,
    Subject,
    split_vectors,
    storages,
    vector_costs,
)
from domain_embeddings.core.evaluation.scores import SweepSettings, sweep
from domain_embeddings.core.evaluation.tasks import TaskOptions, build_tasks

WIDTHS = (5, BANK_WIDTH)
PRECISIONS = ("float32", "int8", "binary")
SPECS = specs()
SETTINGS = CostSettings(
    WIDTHS, PRECISIONS, candidates=10, vectors=100, queries=30, repeats=2, replicates=60, seed=3
)


@pytest.fixture(scope="module")
def world():
    """Subject, tasks, scores and their replicates."""
    bank = make_bank(noise=2.0, seed=1)
    ranges = calibrate({"adapted": bank.vectors}, WIDTHS, {"adapted": bank.header})
    chosen = [spec for spec in SPECS if spec["name"] in {"retrieval", "sts"}]
    chosen.append({**next(s for s in SPECS if s["name"] == "reranking"), "general": True})
    options = TaskOptions(3, 3, 30, 4)
    tasks = build_tasks(records(), chosen, split="test", seed=3, options=options)
    settings = SweepSettings(WIDTHS, ("none",), 60, seed=3, precisions=PRECISIONS)
    about = [*chosen, *(spec for spec in SPECS if spec["name"] not in {c["name"] for c in chosen})]
    scores, replicates = sweep(
        {"adapted": bank}, tasks, about, pairs(), settings, ranges=ranges, show_progress=False
    )
    return Subject("adapted", bank, ranges, about), tasks, scores, replicates


@pytest.fixture(scope="module")
def costs(world) -> pd.DataFrame:
    subject, tasks, _, replicates = world
    return vector_costs(subject, tasks, replicates, SETTINGS, show_progress=False)


def exact(costs: pd.DataFrame) -> pd.DataFrame:
    return costs[costs["search"] == "exact"].set_index(["precision", "width"])


def test_every_width_and_precision_is_searched_exactly_and_by_shortlist():
    kinds = storages(SETTINGS)
    assert kinds[0] == Storage(BANK_WIDTH, "float32")
    assert len(kinds) == len(set(kinds)) == 6 + 5  # full float32 needs no shortlist
    assert len(storages(replace(SETTINGS, candidates=None))) == 6
    some = storages(replace(SETTINGS, shortlist_widths=[5]))
    assert [kind.width for kind in some if kind.search == "shortlist"] == [5, 5, 5]


def test_sizes_are_those_of_the_numbers(costs):
    sizes = exact(costs)["bytes_per_vector"].to_dict()
    assert sizes == {
        ("float32", 5): 20, ("float32", 24): 96,
        ("int8", 5): 5, ("int8", 24): 24,
        ("binary", 5): 1, ("binary", 24): 3,
    }  # fmt: skip
    assert (costs["bytes_per_million"] == 1e6 * costs["bytes_per_vector"]).all()
    shortlist = costs["search"] == "shortlist"
    assert set(costs.loc[shortlist, "rescoring_bytes"]) == {96}
    assert set(costs.loc[~shortlist, "rescoring_bytes"]) == {0}


def test_no_query_is_in_the_corpus_and_the_caps_hold():
    vectors = np.arange(500, dtype=np.float32)[:, None]
    corpus, queries = split_vectors(vectors, SETTINGS)
    assert len(corpus) == 100
    assert len(queries) == 30
    assert not set(corpus.ravel()) & set(queries.ravel())
    again, _ = split_vectors(vectors, SETTINGS)
    np.testing.assert_array_equal(corpus, again)
    corpus, queries = split_vectors(vectors[:50], SETTINGS)
    assert (len(corpus), len(queries)) == (45, 5)


def test_recall_is_the_share_of_the_nearest_by_full_vectors(world, costs):
    subject = world[0]
    corpus, queries = split_vectors(subject.bank.vectors, SETTINGS)
    nearest = np.argsort(-(queries @ corpus.T), axis=1)[:, :10]
    found = exact(costs)
    assert found.loc[("float32", BANK_WIDTH), ["recall", "recall_low", "recall_high"]].eq(1).all()
    for precision, width in (("float32", 5), ("int8", 5), ("int8", BANK_WIDTH)):
        codes = quantiser(precision, "adapted", width, subject.ranges)
        sides = [codes.restore(prefix(side, width)) for side in (queries, corpus)]
        best = np.argsort(-(sides[0] @ sides[1].T), axis=1)[:, :10]
        shares = [len({*a} & {*b}) / 10 for a, b in zip(best, nearest, strict=True)]
        row = found.loc[(precision, width)]
        assert row["recall"] == pytest.approx(np.mean(shares))
        assert row["recall_low"] <= row["recall"] <= row["recall_high"]
    assert found.loc[("binary", 5), "recall"] < found.loc[("int8", 5), "recall"]


def test_quality_and_loss_are_those_of_the_scores(world, costs):
    scores = world[2]
    mean = scores[scores["task"] == "mean"].set_index(["model", "precision", "width"])
    for (precision, width), row in exact(costs).iterrows():
        score = mean.loc[("adapted", precision, width)]
        for ours, theirs in (
            ("quality", "value"),
            ("quality_low", "low"),
            ("quality_high", "high"),
        ):
            assert row[ours] == pytest.approx(score[theirs], abs=1e-6)
        if (precision, width) == ("float32", BANK_WIDTH):
            assert row[["loss", "loss_low", "loss_high"]].eq(0).all()
            continue
        gained = mean.loc[("adapted_minus_full_width", precision, width)]
        for ours, theirs in (("loss", "value"), ("loss_low", "high"), ("loss_high", "low")):
            assert row[ours] == pytest.approx(-gained[theirs], abs=1e-6)


def test_retrieval_is_the_mean_of_the_searched_tasks_of_the_domain(world, costs):
    scores = world[2]
    rows = scores[(scores["task"] == "retrieval") & scores["main"] & (scores["model"] == "adapted")]
    expected = rows.set_index(["precision", "width"])["value"]
    found = exact(costs)["retrieval"]
    pd.testing.assert_series_equal(
        found.sort_index(), expected.sort_index(), check_names=False, atol=1e-6
    )


def test_a_shortlist_of_ten_finds_the_ten_that_the_small_vectors_find(costs):
    # Rescoring changes their order alone, so recall@10 stays and nDCG cannot fall by the order.
    wanted = exact(costs)["recall"]
    rows = costs[costs["search"] == "shortlist"].set_index(["precision", "width"])
    assert rows["recall"].to_dict() == wanted.drop(("float32", BANK_WIDTH)).to_dict()
    assert (rows["candidates"] == 10).all()
    assert rows["quality"].isna().all()


def test_a_shortlist_of_everything_loses_nothing(world):
    subject, tasks, _, replicates = world
    settings = replace(SETTINGS, candidates=1_000, shortlist_widths=[5], precisions=("float32",))
    rows = vector_costs(subject, tasks, replicates, settings, show_progress=False)
    row = rows[rows["search"] == "shortlist"].iloc[0]
    assert row["recall"] == 1
    assert row[["retrieval_loss", "retrieval_loss_low", "retrieval_loss_high"]].abs().max() < 1e-6


def test_rescoring_wins_back_what_small_vectors_lose(costs):
    rows = costs.set_index(["search", "precision", "width"])["retrieval_loss"]
    assert rows["exact", "binary", 5] > 0.05
    assert rows["shortlist", "binary", 5] < rows["exact", "binary", 5]


def test_a_timing_has_a_median_within_its_range(costs):
    assert (costs["queries_per_s_low"] > 0).all()
    assert (costs["queries_per_s_low"] <= costs["queries_per_s"]).all()
    assert (costs["queries_per_s"] <= costs["queries_per_s_high"]).all()
    assert set(costs["threads"]) == {1}


def test_without_resamples_there_are_no_bounds(world):
    subject, tasks, _, replicates = world
    empty = {
        "replicates": np.empty((len(replicates["values"]), 0), np.float32),
        "undefined": np.empty((0, 2), np.int32),
    }
    bare = Bundle({**replicates.arrays, **empty}, replicates.header)
    settings = replace(SETTINGS, replicates=0, candidates=None)
    rows = vector_costs(subject, tasks, bare, settings, show_progress=False)
    assert rows["quality"].notna().all()
    bounds = [name for name in rows if name.endswith(("_low", "_high")) and "per_s" not in name]
    assert rows[bounds].isna().all(axis=None)
