"""Gains and losses on general text, and the gate on a planted drop."""

from __future__ import annotations

import pytest
import report_data

from domain_embeddings.core.errors import GateError, ParameterError
from domain_embeddings.core.reporting import frames, retention
from domain_embeddings.core.reporting.recommend import recommend_width

# At width 128: -3.6 and +4.6 points; at full width -5 and +3.
FULL_DROP = 0.01


def answer(scores=None, **settings):
    scores = report_data.truncation_scores() if scores is None else scores
    return recommend_width(scores, report_data.WIDTHS, **settings)


def test_a_loss_of_the_general_mean_is_told_with_its_figures():
    found = answer()["retention"]
    assert found["tasks"] == ["prose_search", "prose_topics"]
    assert found["lost"]
    assert found["full"]["value"] == pytest.approx(-FULL_DROP)
    assert "-1.0 points ([-1.6, -0.4], p 0.012) at full width 384" in found["sentence"]


@pytest.mark.parametrize(
    ("value", "low", "high", "p", "lost", "words"),
    [
        (0.02, 0.01, 0.03, 0.01, False, "Nothing was lost on general text"),
        (-0.02, -0.05, 0.01, 0.4, False, "No loss of general text has been shown"),
        (-0.02, -0.03, -0.01, 0.2, False, "No loss of general text has been shown"),
        (-0.02, -0.03, -0.01, 0.01, True, "General text lost"),
    ],
)
def test_a_loss_is_claimed_only_beyond_noise_and_after_correction(  # noqa: PLR0917
    value, low, high, p, lost, words
):
    scores = report_data.truncation_scores()
    rows = (scores["model"] == frames.DIFFERENCE) & (scores["task"] == "general_mean")
    scores.loc[rows, ["value", "low", "high", "p_holm"]] = (value, low, high, p)
    found = answer(scores)["retention"]
    assert found["lost"] == lost
    assert found["sentence"].startswith(words)


def test_without_a_general_task_there_is_nothing_to_tell():
    scores = report_data.truncation_scores()
    domain = scores[~scores["general"]]
    assert answer(domain)["retention"] is None
    assert retention.table(frames.main_scores(domain)) is None


def test_the_table_has_every_general_task_at_every_width_and_the_mean_last():
    table = retention.table(frames.main_scores(report_data.truncation_scores()))
    assert [row["name"] for row in table["rows"]] == [
        "prose_search", "prose_topics", "mean of the general tasks",
    ]  # fmt: skip
    assert {len(row["cells"]) for row in table["rows"]} == {len(report_data.WIDTHS)}
    assert table["tests"] == 3 * len(report_data.WIDTHS)


@pytest.mark.parametrize(("limit", "fails"), [(None, False), (0.011, False), (0.009, True)])
def test_the_gate_holds_the_drop_against_the_limit(limit, fails):
    given = answer()
    if not fails:
        retention.check_general_drop(given, limit)
        return
    with pytest.raises(GateError) as error:
        retention.check_general_drop(given, limit)
    for words in (
        "-1.0 points ([-1.6, -0.4], p 0.012) at width 384",
        "prose_search and prose_topics",
        "evaluation.max_general_drop allows 0.9 points",
        "Everything was saved",
    ):
        assert words in str(error.value)
    assert "at width 128" not in str(error.value)


def test_the_gate_needs_no_intervals_but_something_to_measure():
    bare = report_data.truncation_scores().assign(low=float("nan"), high=float("nan"))
    with pytest.raises(GateError, match=r"-1.0 points at width 384"):
        retention.check_general_drop(answer(bare.assign(p_holm=float("nan"))), 0.005)
    scores = report_data.truncation_scores()
    with pytest.raises(ParameterError, match="no task is evaluated as general text"):
        retention.check_general_drop(answer(scores[~scores["general"]]), 0.5)
