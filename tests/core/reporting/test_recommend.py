from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting.recommend import recommend_width, recommended_row


def mean_rows(
    values: dict[int, float],
    half: float = 0.01,
    model: str = "adapted",
    method: str = "mrl",
    seed: int = 0,
) -> pd.DataFrame:
    """Mean rows of one model with the same half-width at every width."""
    return pd.DataFrame(
        {
            "model": model,
            "method": method,
            "transform": "none",
            "task": "mean",
            "type": "mean",
            "width": list(values),
            "metric": "main",
            "main": True,
            "value": list(values.values()),
            "n": 100,
            "low": [value - half for value in values.values()],
            "high": [value + half for value in values.values()],
            "seed": seed,
            "split": "test",
        }
    )


def with_difference(gap: float, half: float) -> pd.DataFrame:
    adapted = mean_rows({16: 0.6, 32: 0.6})
    reference = mean_rows({16: 0.6 - gap, 32: 0.6 - gap}, model="reference", method="reference")
    difference = mean_rows({16: gap, 32: gap}, half=half, model="adapted_minus_reference")
    return pd.concat([adapted, reference, difference], ignore_index=True)


def recommended(scores: pd.DataFrame, floor: float | None = None) -> int:
    return recommend_width(scores, [16, 32, 64], floor)["recommended_width"]


@pytest.mark.parametrize(
    ("values", "half", "expected"),
    [
        pytest.param({16: 0.7919, 32: 0.793, 64: 0.8}, 0.001, 32, id="a loss of 1 % is too much"),
        pytest.param({16: 0.7921, 32: 0.793, 64: 0.8}, 0.001, 16, id="a loss below 1 % passes"),
        pytest.param({16: 0.78, 32: 0.79, 64: 0.8}, 0.03, 16, id="inside the interval passes"),
        pytest.param({16: 0.78, 32: 0.79, 64: 0.8}, 0.015, 32, id="outside of it does not"),
        pytest.param({16: 0.70, 32: 0.77, 64: 0.8}, 0.3, 32, id="noise excuses at most 5 %"),
        pytest.param({16: 0.80, 32: 0.70, 64: 0.8}, 0.01, 64, id="one lucky width is not enough"),
        pytest.param({16: 0.85, 32: 0.84, 64: 0.8}, 0.01, 16, id="small widths may be better"),
    ],
)
def test_the_smallest_width_from_which_all_pass_is_recommended(values, half, expected):
    assert recommended(mean_rows(values, half)) == expected


def test_the_recommendation_equals_a_naive_search_on_random_curves():
    rng = np.random.default_rng(5)
    widths = [16, 32, 64, 128]
    picked = set()
    for _ in range(60):
        values = dict(zip(widths, np.sort(rng.uniform(0.7, 0.8, 4)).tolist(), strict=True))
        half = float(rng.uniform(0.0, 0.06))
        full = values[128]

        def passes(width: int, values=values, full=full, half=half) -> bool:
            loss = 1 - values[width] / full
            return loss <= 0.01 or (loss <= 0.05 and values[width] >= full - half)

        good = [w for w in widths if all(passes(v) or v == 128 for v in widths if v >= w)]
        answer = recommend_width(mean_rows(values, half), widths)
        assert answer["recommended_width"] == min(good)
        picked.add(min(good))
    assert len(picked) > 2  # the curves exercise more than one answer


@pytest.mark.parametrize(("floor", "expected"), [(0.9, 16), (0.95, 32), (0.999, 64), (1.0, 64)])
def test_a_quality_floor_replaces_the_rule(floor, expected):
    scores = mean_rows({16: 0.73, 32: 0.78, 64: 0.8}, half=0.2)
    answer = recommend_width(scores, [16, 32, 64], floor)
    assert answer["recommended_width"] == expected
    assert "reporting.quality_floor" in answer["rule"]


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
    answer = recommend_width(with_difference(gap, half), [16, 32])
    assert answer["verdict"] == verdict
    assert words in answer["sentence"]
    assert answer["sentence"].startswith("Ship") == (verdict != "worse")


def test_missing_intervals_leave_only_the_tolerance_and_become_null_in_json():
    scores = mean_rows({16: 0.78, 32: 0.795, 64: 0.8}, half=math.nan)
    answer = recommend_width(scores, [16, 32, 64])
    assert answer["recommended_width"] == 32
    row = json.loads(json.dumps(answer, allow_nan=False))["widths"][0]
    assert row["low"] is None
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
