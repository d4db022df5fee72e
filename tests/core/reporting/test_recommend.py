from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting.recommend import (
    asides,
    recommend_width,
    recommended_row,
    rival_name,
)


def mean_rows(  # noqa: PLR0917
    values: dict[int, float],
    half: float = 0.01,
    model: str = "adapted",
    method: str = "mrl",
    seed: int = 0,
    p: float = 0.01,
    task: str = "mean",
) -> pd.DataFrame:
    """Mean rows of one model with the same half-width at every width."""
    return pd.DataFrame(
        {
            "model": model,
            "method": method,
            "transform": "none",
            "task": task,
            "type": task,
            "width": list(values),
            "metric": "main",
            "main": True,
            "value": list(values.values()),
            "n": 100,
            "low": [value - half for value in values.values()],
            "high": [value + half for value in values.values()],
            "general": task == "general_mean",
            "p_holm": p if math.isfinite(half) else math.nan,
            "confidence": 0.95,
            "seed": seed,
            "split": "test",
        }
    )


def with_cut(
    values: dict[int, float], half: float, model: str = "adapted", **kwargs
) -> pd.DataFrame:
    """Mean rows and their paired loss against the full width, known to +- half."""
    full = values[max(values)]
    cut = {width: value - full for width, value in values.items() if width < max(values)}
    paired = mean_rows(cut, half=half, model=f"{model}_minus_full_width", **kwargs)
    return pd.concat([mean_rows(values, half=0.05, model=model, **kwargs), paired])


def with_rivals(
    gap: float, half: float = 0.01, rival_gap: float = 0.02, rival_half: float = 0.01
) -> pd.DataFrame:
    """Two equal widths, compared with the untouched model as it is and after pca."""

    def both(value: float) -> dict[int, float]:
        return {16: value, 32: value}

    reference = mean_rows(both(0.6 - gap), model="reference", method="reference")
    rotated = mean_rows(both(0.6 - rival_gap), model="reference", method="reference")
    return pd.concat(
        [
            with_cut(both(0.6), 0.001),
            reference,
            rotated.assign(transform="pca"),
            mean_rows(both(gap), half=half, model="adapted_minus_reference"),
            mean_rows(both(rival_gap), half=rival_half, model="adapted_minus_reference_pca"),
        ],
        ignore_index=True,
    )


def recommended(scores: pd.DataFrame, **settings: float) -> int:
    return recommend_width(scores, [16, 32, 64], **settings)["recommended_width"]


@pytest.mark.parametrize(
    ("values", "half", "expected"),
    [
        pytest.param({16: 0.79, 32: 0.793, 64: 0.8}, 0.0005, 32, id="a loss of 1.25 % is too much"),
        pytest.param({16: 0.793, 32: 0.794, 64: 0.8}, 0.0005, 16, id="one below 1 % passes"),
        pytest.param({16: 0.793, 32: 0.796, 64: 0.8}, 0.003, 32, id="if the interval shows it"),
        pytest.param({16: 0.799, 32: 0.799, 64: 0.8}, 0.03, 64, id="noise is no evidence"),
        pytest.param({16: 0.80, 32: 0.70, 64: 0.8}, 0.001, 64, id="one lucky width is not enough"),
        pytest.param({16: 0.85, 32: 0.84, 64: 0.8}, 0.01, 16, id="small widths may be better"),
    ],
)
def test_the_smallest_width_whose_loss_is_shown_to_be_small_is_recommended(values, half, expected):
    assert recommended(with_cut(values, half)) == expected


def test_the_recommendation_equals_a_naive_search_on_random_curves():
    rng = np.random.default_rng(5)
    widths = [16, 32, 64, 128]
    picked = set()
    for _ in range(60):
        values = dict(zip(widths, np.sort(rng.uniform(0.78, 0.8, 4)).tolist(), strict=True))
        half, tolerance = float(rng.uniform(0.0, 0.01)), float(rng.uniform(0.0, 0.03))
        full = values[128]
        good = [
            w
            for w in widths
            if all(full - values[v] + half <= tolerance * full for v in widths[:-1] if v >= w)
        ]
        answer = recommend_width(with_cut(values, half), widths, tolerance=tolerance)
        assert answer["recommended_width"] == min(good)
        picked.add(min(good))
    assert len(picked) > 2  # the curves exercise more than one answer


def test_fewer_test_rows_never_lead_to_a_smaller_width():
    values = {16: 0.790, 32: 0.796, 64: 0.8}
    chosen = [recommended(with_cut(values, half)) for half in (0.0, 0.003, 0.005, 0.1)]
    assert chosen == [32, 32, 64, 64]


@pytest.mark.parametrize(("tolerance", "expected"), [(0.0, 64), (0.01, 32), (0.05, 16)])
def test_the_tolerance_is_a_share_of_the_full_score(tolerance, expected):
    scores = with_cut({16: 0.77, 32: 0.796, 64: 0.8}, 0.002)
    answer = recommend_width(scores, [16, 32, 64], tolerance=tolerance)
    assert answer["recommended_width"] == expected
    assert answer["tolerated"] == pytest.approx(0.8 * tolerance)
    assert f"{100 * tolerance:g} % of the mean score" in answer["rule"]
    assert f"here {80 * tolerance:.1f} points" in answer["rule"]


def test_losses_carry_the_bounds_of_the_paired_difference_turned_round():
    answer = recommend_width(with_cut({16: 0.75, 32: 0.796, 64: 0.8}, 0.01), [16])
    small, middle, full = answer["widths"]
    assert (small["loss"], small["loss_low"], small["loss_high"]) == pytest.approx(
        (0.05, 0.04, 0.06)
    )
    assert small["loss_verdict"] == "beyond tolerance"
    assert middle["loss_verdict"] == "not settled"
    assert (full["loss"], full["loss_low"], full["loss_verdict"]) == (0.0, None, "")


@pytest.mark.parametrize(
    ("middle", "half", "told"),
    [
        (0.796, 0.01, True),  # a tolerable loss that is not shown
        (0.785, 0.01, False),  # more rows would hardly help
        (0.796, 0.001, False),  # shown
        (0.700, 0.001, False),  # refuted
    ],
)
def test_a_width_left_out_for_want_of_rows_alone_is_told(middle, half, told):
    answer = recommend_width(with_cut({16: 0.3, 32: middle, 64: 0.8}, half), [16, 32, 64])
    assert (answer["smaller"] is not None) == told
    if told:
        assert "Width 32 may do as well: a loss of 0.4 points" in answer["smaller"]
        assert asides(answer) == [answer["smaller"]]


@pytest.mark.parametrize(("floor", "expected"), [(0.9, 16), (0.95, 32), (0.999, 64), (1.0, 64)])
def test_a_quality_floor_replaces_the_rule(floor, expected):
    scores = with_cut({16: 0.73, 32: 0.78, 64: 0.8}, half=0.2)
    answer = recommend_width(scores, [16, 32, 64], quality_floor=floor)
    assert answer["recommended_width"] == expected
    assert "reporting.quality_floor" in answer["rule"]
    assert answer["smaller"] is None


def test_sizes_are_those_of_float32_numbers():
    answer = recommend_width(mean_rows({64: 0.8, 384: 0.8}), [64, 384])
    sizes = {
        row["width"]: (row["bytes_per_vector"], row["bytes_per_million"])
        for row in answer["widths"]
    }
    assert sizes == {64: (256, 256_000_000), 384: (1536, 1_536_000_000)}
    assert "256 MB per million vectors instead of 1.54 GB" in answer["sentence"]


@pytest.mark.parametrize(
    ("gap", "half", "verdict", "words"),
    [
        (
            0.03,
            0.01,
            "better",
            "better than the untouched model at that width by 3.0 points [2.0, 4.0]",
        ),
        (0.004, 0.01, "within noise", "+0.4 points [-0.6, 1.4] is within noise"),
        (-0.004, 0.01, "within noise", "no gain over the untouched model"),
        (-0.03, 0.01, "worse", "Do not ship this model yet"),
        (0.03, math.nan, "no interval", "supports no claim"),
        (0.0, 0.0, "no difference", "exactly as the untouched model"),
    ],
)
def test_a_claim_is_made_only_with_its_interval(gap, half, verdict, words):
    answer = recommend_width(with_rivals(gap, half), [16, 32])
    assert answer["verdict"] == verdict
    assert words in answer["sentence"]
    assert answer["sentence"].startswith("Ship") == (verdict != "worse")


def test_a_claim_that_does_not_survive_the_correction_is_not_made():
    scores = with_rivals(0.03, 0.01, rival_gap=-0.03)
    paired = scores["model"].str.startswith("adapted_minus_reference")
    answer = recommend_width(scores.assign(p_holm=scores["p_holm"].mask(paired, 0.2)), [16, 32])
    assert answer["verdict"] == answer["rival_verdict"] == "not after correction"
    assert answer["sentence"].startswith("Ship width 16")
    assert "+3.0 points [2.0, 4.0] is not enough among 2 comparisons, p 0.20" in answer["sentence"]
    assert "No difference to the recommended vectors has been shown (-3.0" in answer["rival"]


@pytest.mark.parametrize(
    ("gap", "half", "verdict", "words"),
    [
        (0.03, 0.01, "better", "The recommended vectors beat it: +3.0 points [2.0, 4.0]."),
        (0.004, 0.01, "within noise", "it would have been as good (+0.4 points [-0.6, 1.4]"),
        (-0.03, 0.01, "worse", "It beats the recommended vectors (-3.0 points [-4.0, -2.0])"),
        (0.03, math.nan, "no interval", "differ by +3.0 points, without an interval"),
        (0.0, 0.0, "no difference", "It scores exactly the same."),
    ],
)
def test_the_answer_says_whether_pca_alone_would_have_done(gap, half, verdict, words):
    answer = recommend_width(with_rivals(0.05, rival_gap=gap, rival_half=half), [16, 32])
    assert answer["rival_verdict"] == verdict
    assert words in answer["rival"]
    assert f"{100 * (0.6 - gap):.1f} at width 16" in answer["rival"]
    assert asides(answer)[0] == answer["rival"]
    # A model that pca alone beats is not to be shipped, however much it beats the untouched one.
    assert answer["sentence"].startswith("Ship") == (verdict != "worse")
    assert ("after PCA, which changes no weight" in answer["sentence"]) == (verdict == "worse")


def with_shared(
    scores: pd.DataFrame, gaps: dict[int, float], transform: str = "shared"
) -> pd.DataFrame:
    """Add the untouched model after a transform, behind the adapted one by these gaps."""
    own = {width: 0.6 - gap for width, gap in gaps.items()}
    rotated = mean_rows(own, model="reference", method="reference").assign(transform=transform)
    paired = mean_rows(gaps, model=f"adapted_minus_reference_{transform}")
    return pd.concat([scores, rotated, paired], ignore_index=True)


def test_the_rival_is_the_stronger_rotation_at_each_width():
    scores = with_shared(with_rivals(0.05, rival_gap=0.02), {16: 0.03, 32: 0.015})
    small, full = recommend_width(scores, [16, 32])["widths"]
    assert (small["rival_transform"], full["rival_transform"]) == ("pca", "shared")
    assert (small["rival"], full["rival"]) == pytest.approx((0.58, 0.585))
    assert (small["rival_difference"], full["rival_difference"]) == pytest.approx((0.02, 0.015))
    answer = recommend_width(scores, [16, 32])
    assert rival_name(answer) == "after PCA or after shared axes, whichever scores higher"
    assert "the untouched model after PCA with no weight changed: 58.0" in answer["rival"]


def test_a_model_that_shared_axes_beat_is_not_to_be_shipped():
    scores = with_shared(with_rivals(0.05, rival_gap=0.02), {16: -0.03, 32: -0.03})
    answer = recommend_width(scores, [16, 32])
    assert "after shared axes, which changes no weight (-3.0 points" in answer["sentence"]
    assert answer["sentence"].startswith("Do not ship")
    assert rival_name(answer) == "after shared axes"


@pytest.mark.parametrize("method", ["reze_mic", "rotation"])
def test_learned_axes_of_the_untouched_model_are_no_rival_of_themselves(method):
    scores = with_rivals(0.05, rival_gap=0.02)
    scores.loc[scores["model"] == "adapted", "method"] = method
    answer = recommend_width(with_shared(scores, {16: -0.03, 32: -0.03}, "contrastive"), [16, 32])
    found = {row["rival_transform"] for row in answer["widths"]}
    assert found == ({"pca"} if method == "rotation" else {"contrastive"})
    assert answer["sentence"].startswith("Ship") == (method == "rotation")


def test_widths_at_which_the_rival_is_better_are_named_where_it_is_beaten():
    scores = with_rivals(0.05, rival_gap=0.03)
    rival = (scores["model"] == "adapted_minus_reference_pca") & (scores["width"] == 32)
    scores.loc[rival, ["value", "low", "high"]] = (-0.02, -0.03, -0.01)
    answer = recommend_width(scores, [16, 32])
    assert answer["recommended_width"] == 16
    assert answer["rival"].endswith("But at width 32 the rival is better.")


def test_without_the_transform_there_is_no_word_about_the_rival():
    scores = with_rivals(0.05)
    scores = scores[scores["model"] != "adapted_minus_reference_pca"]
    answer = recommend_width(scores[scores["transform"] == "none"], [16, 32])
    assert answer["rival"] is None
    assert asides(answer) == []


def with_precisions(
    coded: dict[str, dict[int, float]], half: float = 0.001, full: float = 0.8
) -> pd.DataFrame:
    """Three float32 widths of which 32 passes at 1 %, and the same widths in other precisions."""
    frames = [with_cut({16: 0.7, 32: 0.798, 64: full}, half).assign(precision="float32")]
    for precision, values in coded.items():
        lost = {width: value - full for width, value in values.items()}
        cut = mean_rows(lost, half=half, model="adapted_minus_full_width")
        frames += [rows.assign(precision=precision) for rows in (mean_rows(values, half=0.05), cut)]
    return pd.concat(frames, ignore_index=True)


@pytest.mark.parametrize(
    ("coded", "half", "expected"),
    [
        pytest.param({}, 0.001, (32, "float32", 128), id="float32 alone"),
        pytest.param(
            {"int8": {16: 0.6, 32: 0.797, 64: 0.8}}, 0.001, (32, "int8", 32), id="same width"
        ),
        pytest.param(
            {"int8": {16: 0.6, 32: 0.78, 64: 0.799}}, 0.001, (64, "int8", 64), id="wider is cheaper"
        ),
        pytest.param(
            {"int8": {16: 0.6, 32: 0.797, 64: 0.8}, "binary": {16: 0.3, 32: 0.6, 64: 0.79}},
            0.001,
            (32, "int8", 32),
            id="binary loses too much",
        ),
        pytest.param(
            {"binary": {16: 0.3, 32: 0.6, 64: 0.797}}, 0.001, (64, "binary", 8), id="or not"
        ),
        pytest.param(
            {"int8": {16: 0.8, 32: 0.7, 64: 0.8}}, 0.001, (64, "int8", 64), id="no lucky width"
        ),
        pytest.param({"int8": {16: 0.8, 32: 0.8, 64: 0.8}}, 0.05, (64, "float32", 256), id="noise"),
    ],
)
def test_the_cheapest_storage_is_the_smallest_that_the_rule_allows(coded, half, expected):
    answer = recommend_width(with_precisions(coded, half), [16, 32, 64])
    found = answer["cheapest"]
    assert (found["width"], found["precision"], found["bytes_per_vector"]) == expected
    # The recommended width is that of float32, whatever else was scored.
    assert answer["recommended_width"] == (32 if half == 0.001 else 64)
    assert (answer["cheaper"] is None) == (not coded)


def test_the_cheapest_storage_equals_a_naive_search_on_random_scores():
    rng = np.random.default_rng(7)
    picked = set()
    for _ in range(40):
        coded = {
            precision: dict(
                zip((16, 32, 64), np.sort(rng.uniform(0.78, 0.8, 3)).tolist(), strict=True)
            )
            for precision in ("int8", "binary")
        }
        bits = {"float32": 32, "int8": 8, "binary": 1}
        passed = {(64, "float32"), (32, "float32")}
        for precision, values in coded.items():
            passed |= {
                (width, precision)
                for width in values
                if all(0.8 - values[v] + 0.001 <= 0.008 for v in values if v >= width)
            }
        expected = min(passed, key=lambda kind: kind[0] * bits[kind[1]])
        found = recommend_width(with_precisions(coded), [16, 32, 64])["cheapest"]
        assert (found["width"], found["precision"]) == expected
        picked.add(expected)
    assert len(picked) > 3


def test_the_cheapest_storage_keeps_the_quality_floor():
    scores = with_precisions({"int8": {16: 0.6, 32: 0.75, 64: 0.79}}, half=0.2)
    strict = recommend_width(scores, [16, 32, 64], quality_floor=0.98)
    loose = recommend_width(scores, [16, 32, 64], quality_floor=0.93)
    assert [answer["cheapest"]["width"] for answer in (strict, loose)] == [64, 32]
    assert {answer["cheapest"]["precision"] for answer in (strict, loose)} == {"int8"}


def test_the_cheapest_storage_is_told_with_its_loss():
    answer = recommend_width(with_precisions({"int8": {16: 0.6, 32: 0.797, 64: 0.8}}), [16, 32])
    assert answer["cheaper"] == (
        "Cheapest by the same rule: width 32 in int8, 32 MB per million vectors instead of 128 MB, "
        "keeping 99.6 % of the full-width score (loss 0.3 points [0.2, 0.4])."
    )
    assert answer["cheaper"] in asides(answer)
    failed = recommend_width(with_precisions({"int8": {16: 0.3, 32: 0.3, 64: 0.3}}), [16, 32])
    assert failed["cheaper"] == "Nothing cheaper passed the rule in int8."
    json.dumps(failed, allow_nan=False)


def test_without_intervals_the_scores_decide_and_the_rule_says_so():
    for scores in (
        mean_rows({16: 0.78, 32: 0.795, 64: 0.8}, half=math.nan),
        with_cut({16: 0.78, 32: 0.795, 64: 0.8}, half=math.nan),
    ):
        answer = recommend_width(scores, [16, 32, 64])
        assert answer["recommended_width"] == 32
        assert "judged by the scores alone" in answer["rule"]
    row = json.loads(json.dumps(answer, allow_nan=False))["widths"][0]
    assert row["loss_low"] is None
    assert row["difference"] is None


def test_without_training_nothing_is_claimed():
    untouched = mean_rows({16: 0.7, 32: 0.8}, model="reference", method="reference")
    copied = mean_rows({16: 0.7, 32: 0.8}, method="reference")
    for scores in (untouched, pd.concat([untouched, copied])):
        answer = recommend_width(scores, [16, 32])
        assert answer["sentence"].startswith("Nothing was trained")
        assert "better" not in answer["sentence"]


def test_several_seeds_give_the_mean_value_and_the_widest_bounds():
    scores = pd.concat(
        [mean_rows({32: 0.80}, half=0.01, seed=0), mean_rows({32: 0.82}, half=0.03, seed=1)]
    )
    row = recommended_row(recommend_width(scores, [32]))
    assert row["score"] == pytest.approx(0.81)
    assert (row["low"], row["high"]) == pytest.approx((0.79, 0.85))


@pytest.mark.parametrize(
    ("method", "trained"), [("mrl", [False, True, True]), ("plain", [False, False, True])]
)
def test_untrained_widths_are_marked(method, trained):
    answer = recommend_width(mean_rows({16: 0.7, 32: 0.8, 64: 0.8}, method=method), [32])
    assert [row["trained"] for row in answer["widths"]] == trained


def test_scores_without_mean_rows_are_refused():
    scores = mean_rows({16: 0.8}).assign(task="banking")
    with pytest.raises(DataError, match="no rows of task 'mean' for the model 'adapted'"):
        recommend_width(scores, [16])
    with pytest.raises(DataError, match="run the stage 'evaluation' first"):
        recommend_width(scores.assign(main=False), [16])
