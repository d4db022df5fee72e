"""Tests of the prefix sweep and its paired intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from task_data import make_bank, pairs, records, specs

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import KEY_BYTES, EmbeddingBank
from domain_embeddings.core.encoders.quantisation import calibrate
from domain_embeddings.core.errors import DataError, ParameterError
from domain_embeddings.core.evaluation.metrics import METRIC_NAME
from domain_embeddings.core.evaluation.replicates import seed_scores
from domain_embeddings.core.evaluation.scores import (
    COLUMNS,
    Contrast,
    SweepSettings,
    Vectors,
    contrasts,
    sweep,
)
from domain_embeddings.core.evaluation.tasks import TaskOptions, build_tasks
from domain_embeddings.core.statistics.comparison import paired_difference

D = 24
TYPES = ("classification", "clustering", "retrieval", "pair_classification", "sts")
OPTIONS = TaskOptions(3, 3, 30, 4)
SETTINGS = SweepSettings(widths=(4, D), transforms=("none", "pca"), replicates=200, seed=5)


def run_both(
    banks, settings=SETTINGS, types=TYPES, general=(), **options
) -> tuple[pd.DataFrame, Bundle]:
    # All specs, as the pairs that transforms are fitted on come from more tasks than are scored.
    about = [{**spec, "general": spec["name"] in general} for spec in specs(*TYPES)]
    chosen = [spec for kind in types for spec in about if spec["name"] == kind]
    tasks = build_tasks(records(), chosen, split="test", seed=settings.seed, options=OPTIONS)
    return sweep(banks, tasks, about, pairs(), settings, show_progress=False, **options)


def run(banks, settings=SETTINGS, types=TYPES, **options) -> pd.DataFrame:
    return run_both(banks, settings, types, **options)[0]


@pytest.fixture(scope="module")
def banks():
    return {"reference": make_bank(), "adapted": make_bank(noise=6.0, seed=1)}


@pytest.fixture(scope="module")
def scores(banks):
    return run(banks, methods={"adapted": "mrl"})


def test_rows_are_unique_by_model_transform_task_width_metric_and_seed(scores):
    assert list(scores.columns) == list(COLUMNS)
    assert not scores.duplicated(["model", "transform", "task", "width", "metric", "seed"]).any()


def test_every_combination_is_scored_and_has_one_main_metric(scores):
    main = scores[scores["main"]]
    count = main.groupby(["model", "transform", "task", "width"]).size()
    assert (count == 1).all()
    blocks = {
        "reference": 4,
        "adapted": 4,
        "adapted_minus_reference": 4,
        "adapted_minus_reference_pca": 2,
        "adapted_minus_adapted_pca": 2,
        "adapted_minus_full_width": 2,
        "reference_minus_full_width": 2,
    }
    assert count.groupby("model").size().to_dict() == {
        model: many * (len(TYPES) + 1) for model, many in blocks.items()
    }


def test_metric_names_are_safe_and_values_are_between_zero_and_one(scores):
    assert all(METRIC_NAME.fullmatch(name) for name in scores["metric"].unique())
    own = scores[scores["model"].isin(["reference", "adapted"]) & (scores["type"] != "sts")]
    assert own["value"].between(0, 1).all()


def test_methods_and_settings_are_written_down(scores):
    untouched = scores["model"].isin(["reference", "reference_minus_full_width"])
    assert set(scores.loc[untouched, "method"]) == {"reference"}
    assert set(scores.loc[~untouched, "method"]) == {"mrl"}
    assert set(scores["seed"]) == {5}
    assert set(scores["split"]) == {"test"}
    assert set(scores["max_length"]) == {64}


def test_main_metrics_have_bounds_around_the_value(scores):
    main = scores[scores["main"] & (scores["model"] == "reference")]
    assert main[["low", "high"]].notna().all(axis=None)
    slack = 0.05
    assert (main["low"] <= main["value"] + slack).all()
    assert (main["value"] <= main["high"] + slack).all()


def test_the_mean_is_the_mean_of_the_main_metrics_of_the_tasks(scores):
    main = scores[scores["main"]]
    keys = ["model", "transform", "width"]
    expected = main[main["task"] != "mean"].groupby(keys)["value"].mean()
    found = main[main["task"] == "mean"].set_index(keys)["value"]
    pd.testing.assert_series_equal(found.sort_index(), expected.sort_index(), check_names=False)


def test_the_mean_is_known_better_than_its_tasks(scores):
    main = scores[scores["main"] & (scores["model"] == "reference") & (scores["width"] == D)]
    span = (main["high"] - main["low"]).groupby(main["task"] == "mean").mean()
    assert span[True] < span[False]


def value_of(scores, vectors, keys):
    """Values of one kind of vectors by task and metric."""
    rows = scores[
        (scores["model"] == vectors.model)
        & (scores["transform"] == vectors.transform)
        & (scores["width"] == vectors.width)
    ]
    return rows.set_index(keys)["value"].sort_index()


def test_differences_are_those_of_the_values(scores):
    keys = ["task", "metric"]
    found = contrasts({"reference": D, "adapted": D}, SETTINGS.transforms, SETTINGS.widths)
    assert len(found) == 4 + 2 + 2 + 2 + 2
    for contrast in found:
        left = contrast.left
        gained = value_of(scores, left, keys) - value_of(scores, contrast.right, keys)
        rows = value_of(scores, Vectors(contrast.name, left.transform, left.width), keys)
        pd.testing.assert_series_equal(rows, gained, atol=1e-12)


def test_contrasts_name_what_a_user_could_ship_instead():
    found = contrasts({"reference": 8, "mine": 8}, ("none", "pca"), (4, 8))
    for contrast in [
        Contrast("mine_minus_reference", Vectors("mine", "pca", 4), Vectors("reference", "pca", 4)),
        Contrast(
            "mine_minus_reference_pca", Vectors("mine", "none", 4), Vectors("reference", "pca", 4)
        ),
        Contrast("mine_minus_mine_pca", Vectors("mine", "none", 8), Vectors("mine", "pca", 8)),
        Contrast("mine_minus_full_width", Vectors("mine", "pca", 4), Vectors("mine", "pca", 8)),
    ]:
        assert found.count(contrast) == 1
    labels = [(c.name, c.left.transform, c.left.width) for c in found]
    assert len(labels) == len(set(labels))
    assert all(c.left != c.right for c in found)


def test_coarse_vectors_are_compared_with_float32_and_with_full_width():
    found = contrasts({"reference": 8, "mine": 8}, ("none", "pca"), (4, 8), ("float32", "int8"))
    plain = contrasts({"reference": 8, "mine": 8}, ("none", "pca"), (4, 8))
    extra = [contrast for contrast in found if contrast not in plain]
    assert [c for c in found if c not in extra] == plain
    expected = []
    for model in ("reference", "mine"):
        for width in (4, 8):
            left = Vectors(model, "none", width, "int8")
            expected += [
                Contrast(f"{model}_minus_float32", left, Vectors(model, "none", width)),
                Contrast(f"{model}_minus_full_width", left, Vectors(model, "none", 8)),
            ]
    assert extra == expected


def test_a_model_is_not_compared_with_a_full_width_that_was_not_scored():
    found = contrasts({"mine": 8}, ("none",), (2, 4))
    assert found == []
    assert [c.left.width for c in contrasts({"mine": 8}, ("none",), (2, 8))] == [2]


def test_vectors_that_rank_alike_differ_by_rounding_only_where_each_alone_is_uncertain(scores):
    # Turning vectors at full width changes no cosine.
    rows = scores[scores["main"] & (scores["width"] == D) & (scores["task"] == "sts")]
    rows = rows.set_index(["model", "transform"])
    pair = rows.loc[("adapted_minus_adapted_pca", "none"), ["value", "low", "high"]]
    assert pair.abs().max() < 1e-3
    alone = rows.loc[("adapted", "none")]
    assert alone["high"] - alone["low"] > 0.1


def test_equal_models_differ_by_exactly_nothing(banks):
    settings = SweepSettings((4,), ("none",), 50)
    rows = run({"reference": banks["reference"], "adapted": make_bank()}, settings)
    paired = rows[(rows["model"] == "adapted_minus_reference") & rows["main"]]
    assert (paired[["value", "low", "high"]] == 0).all(axis=None)


def test_pairing_is_sharper_than_comparing_two_intervals(banks):
    other = make_bank(noise=0.3, seed=2)
    settings = SweepSettings((D,), ("none",), 200)
    close = run({"reference": banks["reference"], "adapted": other}, settings)
    means = close[close["task"] == "mean"].set_index("model")
    spans = means["high"] - means["low"]
    assert spans["adapted_minus_reference"] < 0.5 * spans["reference"]


def test_a_planted_loss_is_beyond_noise(scores):
    row = scores[
        (scores["model"] == "adapted_minus_reference")
        & (scores["task"] == "mean")
        & (scores["transform"] == "none")
        & (scores["width"] == D)
    ].iloc[0]
    assert row["value"] < 0
    assert row["high"] < 0


def test_a_wider_confidence_gives_wider_bounds(banks):
    one = {"reference": banks["reference"]}
    spans = []
    for confidence in (0.6, 0.99):
        settings = SweepSettings((4,), ("none",), 200, confidence)
        rows = run(one, settings, ("sts",))
        spans.append((rows["high"] - rows["low"]).max())
    assert spans[0] < spans[1]


def test_without_resamples_there_are_values_but_no_bounds(banks):
    rows = run(banks, SweepSettings((4,), ("none",), 0), ("sts", "retrieval"))
    assert rows["value"].notna().all()
    assert rows[["low", "high"]].isna().all(axis=None)


def test_more_than_one_adapted_model_can_be_compared(banks):
    rows = run({**banks, "other": make_bank(1.0)}, SweepSettings((4,), ("none",), 20), ("sts",))
    assert {"adapted_minus_reference", "other_minus_reference"} <= set(rows["model"])


@pytest.fixture(scope="module")
def coarse(banks):
    """Scores of the vectors as they are in all precisions."""
    settings = SweepSettings((5, D), ("none", "pca"), 50, precisions=("float32", "int8", "binary"))
    ranges = calibrate(
        {name: bank.vectors for name, bank in banks.items()},
        (5, D),
        {name: bank.header for name, bank in banks.items()},
    )
    return run(banks, settings, ("retrieval", "sts"), ranges=ranges)


def test_only_vectors_as_they_are_are_quantised(coarse):
    main = coarse[coarse["main"]]
    assert not main.duplicated(["model", "transform", "precision", "task", "width"]).any()
    count = main[main["task"] == "mean"].groupby(["precision", "transform"]).size().to_dict()
    assert count == {
        ("float32", "none"): 4 + 2 + 2 + 2 + 2,
        ("float32", "pca"): 4 + 2 + 2,
        ("int8", "none"): 4 + 4 + 4,
        ("binary", "none"): 4 + 4 + 4,
    }


def test_quantised_scores_are_those_of_vectors_that_were_quantised_beforehand(banks, coarse):
    bank = banks["adapted"]
    signs = np.where(bank.vectors[:, :5] > 0, 1.0, -1.0).astype(np.float32)
    keys = np.frombuffer(bank._keys.tobytes(), np.uint8).reshape(-1, KEY_BYTES)
    other = EmbeddingBank(Bundle({"vectors": signs, "keys": keys}, bank.header))
    rows = run({"adapted": other}, SweepSettings((5,), ("none",), 50), ("retrieval", "sts"))
    rows = rows[rows["model"] == "adapted"].set_index(["task", "metric"])
    found = coarse[
        (coarse["model"] == "adapted") & (coarse["precision"] == "binary") & (coarse["width"] == 5)
    ].set_index(["task", "metric"])
    for task in ("retrieval", "sts"):
        columns = ["value", "low", "high"]
        pd.testing.assert_frame_equal(found.loc[task, columns], rows.loc[task, columns], atol=1e-6)


def test_int8_costs_next_to_nothing_and_binary_a_lot_at_a_small_width(coarse):
    rows = coarse[(coarse["task"] == "retrieval") & (coarse["model"] == "reference_minus_float32")]
    loss = rows[rows["main"]].set_index(["precision", "width"])["value"]
    assert abs(loss["int8", 5]) < 0.02
    assert loss["binary", 5] < -0.05


def test_int8_without_ranges_is_refused(banks):
    settings = SweepSettings((5,), ("none",), 0, precisions=("float32", "int8"))
    with pytest.raises(DataError, match="int8 needs the ranges of the model 'reference' at width"):
        run(banks, settings, ("sts",))


def test_without_a_reference_there_are_no_differences(banks):
    rows = run({"adapted": banks["adapted"]}, SweepSettings((4,), ("none",), 20), ("sts",))
    assert set(rows["model"]) == {"adapted"}  # and no width above to lose against


def test_the_order_of_the_tasks_does_not_matter(banks):
    keys = ["model", "task", "width", "metric"]
    settings = SweepSettings((4,), ("none",), 50)
    forward = run(banks, settings, TYPES).set_index(keys).sort_index()
    backward = run(banks, settings, TYPES[::-1]).set_index(keys).sort_index()
    columns = ["value", "low", "high", "n"]
    pd.testing.assert_frame_equal(
        forward.drop("mean", level="task")[columns], backward.drop("mean", level="task")[columns]
    )


SMALL = SweepSettings((4, D), ("none", "pca"), 60, seed=5)
SOME = ("sts", "retrieval", "pair_classification")


@pytest.fixture(scope="module")
def with_general(banks):
    return run_both(banks, SMALL, SOME, general=("sts",))


def test_general_tasks_have_a_mean_of_their_own_and_no_part_in_the_other(with_general):
    main = with_general[0].query("main and model == 'adapted' and transform == 'none'")
    values = main.set_index(["width", "task"])["value"].unstack()
    np.testing.assert_allclose(values["general_mean"], values["sts"])
    np.testing.assert_allclose(values["mean"], values[["retrieval", "pair_classification"]].mean(1))
    general = set(main.loc[main["general"].astype(bool), "task"])
    assert general == {"sts", "general_mean"}


def test_every_comparison_has_a_p_value_that_is_corrected_within_its_question(with_general):
    table = with_general[0]
    compared = table["model"].str.contains("_minus_") & table["main"]
    assert table.loc[compared, ["p", "p_holm"]].notna().all(axis=None)
    assert table.loc[~compared, ["p", "p_holm"]].isna().all(axis=None)
    for (_, _, general), rows in table[compared].groupby(["model", "transform", "general"]):
        widths = rows["width"].nunique()
        assert len(rows) == widths * (2 if general else 3)
        naive = [
            max(min(1.0, (rows["p"] >= other).sum() * other) for other in rows["p"] if other <= own)
            for own in rows["p"]
        ]
        np.testing.assert_allclose(rows["p_holm"], naive)


def test_stored_replicates_give_back_the_intervals_of_differences(with_general):
    table, replicates = with_general
    rows = table.query("main and model == 'adapted_minus_reference' and transform == 'pca'")
    assert len(rows) == 2 * 5
    for row in rows.itertuples():
        key = {"transform": "pca", "width": row.width, "task": row.task}
        left, right = (
            seed_scores([replicates], model=model, **key) for model in ("adapted", "reference")
        )
        found = paired_difference(left, right, SMALL.confidence)
        expected = [row.value, row.low, row.high, row.p]
        np.testing.assert_allclose(
            [found.value, found.low, found.high, found.p], expected, atol=1e-6
        )


def test_too_few_resamples_for_any_claim_are_told(banks, caplog):
    some = {"reference": banks["reference"], "adapted": banks["adapted"]}
    for replicates, told in ((79, True), (80, False)):
        caplog.clear()
        # The mean and one task at one width: 2 comparisons at 0.05.
        run(some, SweepSettings((4,), ("none",), replicates), ("sts",))
        assert ("80 or more" in caplog.text) == told


def test_draws_depend_on_the_task_alone_so_that_runs_of_other_seeds_pair(banks):
    # Without probes nothing else depends on the seed.
    bundles = []
    for seed in (1, 2):
        settings = SweepSettings((4,), ("none",), 40, seed=seed)
        bundles.append(run_both({"reference": banks["reference"]}, settings, ("sts",))[1])
    np.testing.assert_array_equal(*(bundle["replicates"] for bundle in bundles))
    assert [bundle.header["seed"] for bundle in bundles] == [1, 2]


def test_a_width_beyond_the_model_is_refused_with_the_largest_allowed(banks):
    with pytest.raises(ParameterError, match=rf"widths: \[32, 64\].*allowed is {D}"):
        run(banks, SweepSettings((8, 32, 64)))


def test_widths_that_were_not_trained_are_told(banks, caplog):
    bank = make_bank(widths=[8, D])
    run({"adapted": bank}, SweepSettings((4, 8), ("none",), 0), ("sts",))
    assert "trained for the widths [8, 24], not for [4]" in caplog.text
