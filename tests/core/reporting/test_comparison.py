"""Comparisons of several runs, on made-up scores with planted truths."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from compared_runs import BASE, GAINS, run

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting.comparison import (
    ALL_WIDTHS,
    Comparison,
    chosen_width,
    compare_runs,
)
from domain_embeddings.core.reporting.comparison_page import (
    answer,
    matrix,
    parameter_table,
    render_comparison,
    speed_table,
)

METHODS = ("plain", "mrl", "mic")


@pytest.fixture(scope="module")
def one_seed() -> Comparison:
    return compare_runs([run(name) for name in ("reference", *METHODS)], 0.95)


@pytest.fixture(scope="module")
def seeds() -> Comparison:
    return compare_runs([run(name, seed) for seed in (0, 1, 2) for name in METHODS], 0.95)


def entry(comparison: Comparison, name: str):
    [found] = [entry for entry in comparison.entries if entry.name == name]
    return found


def test_the_untouched_model_is_always_there_and_never_twice(one_seed, seeds):
    for comparison in (one_seed, seeds):
        names = [each.name for each in comparison.entries]
        assert names[:2] == ["untouched", "untouched after PCA"]
        assert "reference" not in names
        assert len(names) == len(set(names)) == 2 + 2 * len(METHODS)
        assert [e.name for e in comparison.contenders] == [*names[:2], *METHODS]


def test_scores_are_means_over_tasks_widths_and_seeds(seeds):
    found = seeds.estimate(entry(seeds, "mic"), "mean", 32)
    assert found.value == pytest.approx(BASE[32] + GAINS["mic"])
    assert found.low < found.value < found.high
    overall = seeds.estimate(entry(seeds, "mic"), "mean", ALL_WIDTHS)
    assert overall.value == pytest.approx(np.mean([*BASE.values()]) + GAINS["mic"])


def test_a_planted_difference_is_claimed_and_a_planted_tie_is_not(one_seed):
    ranking = {row["entry"].name: row for row in one_seed.ranking(64)}
    assert next(iter(ranking)) == "mic after PCA"
    assert ranking["plain"]["best_verdict"] == "worse"
    assert ranking["mic"]["gain_verdict"] == "better"
    frame = one_seed.difference_table()
    tie = frame[(frame["left"] == "plain") & (frame["right"] == "mrl") & (frame["width"] == 64)]
    assert (tie["p_holm"] > 0.05).all()


def test_a_claim_survives_the_correction_even_where_resamples_are_few(one_seed):
    # 200 resamples resolve p = 0.01; ten pairs times that would never be below 0.05.
    frame = one_seed.difference_table()
    sure = frame[
        (frame["left"] == "untouched") & (frame["right"] == "mic") & (frame["task"] == "mean")
    ]
    assert (sure["p_holm"] < 1e-6).all()
    assert (frame["p_holm"] >= frame["p"]).all()


def test_the_answer_claims_what_is_shown_and_names_the_first_of_many(one_seed):
    said = answer(one_seed, one_seed.ranking(64), 64)
    assert said.startswith("At width 64, mic after PCA has the highest mean score: 77.0 [")
    assert said.endswith("It is shown to be better than all others.")
    twins = [run(f"twin_{k}", setting="mic") for k in range(8)]
    many = compare_runs([*twins, run("plain")], 0.95)
    said = answer(many, many.ranking(64), 64)
    assert re.search(
        r"not told apart from (twin_\d after PCA, ){4}twin_\d after PCA and 2 others\.", said
    )
    assert "better than twin_0, twin_1, twin_2, twin_3, twin_4 and 7 others." in said


def test_the_answer_names_whoever_the_correction_leaves_open(one_seed):
    first, second, *others = one_seed.ranking(64)
    ranking = [first, {**second, "best_verdict": "not after correction"}, *others]
    said = answer(one_seed, ranking, 64)
    assert said.endswith(f"It is not told apart from {second['entry'].name}.")
    assert "all others" not in said


def test_seeds_widen_what_test_rows_alone_leave(one_seed, seeds):
    narrow, wide = (
        c.difference(entry(c, "mic"), entry(c, "untouched"), "mean", 64) for c in (one_seed, seeds)
    )
    assert (narrow.seeds, wide.seeds) == (1, 3)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    # Both have the same seed effect, which cancels in their difference.
    paired = seeds.difference(entry(seeds, "mic"), entry(seeds, "plain"), "mean", 64)
    assert paired.high - paired.low < (wide.high - wide.low) / 2


def test_a_difference_is_taken_over_the_seeds_that_both_have():
    runs = [run("plain", 0), run("plain", 1), run("mic", 1), run("mic", 2)]
    comparison = compare_runs(runs, 0.95)
    left, right = entry(comparison, "mic"), entry(comparison, "plain")
    assert comparison.difference(left, right, "mean", 64).seeds == 1
    apart = compare_runs([run("plain", 0), run("mic", 1)], 0.95)
    found = apart.difference(entry(apart, "mic"), entry(apart, "plain"), "mean", 64)
    assert found.seeds == 0
    assert np.isnan(found.value)


def test_the_matrix_is_antisymmetric_and_counts_single_tasks(one_seed):
    rows = dict(matrix(one_seed, one_seed.difference_table(), 64))
    names = list(rows)
    assert names[0] == "mic"
    for k, name in enumerate(names):
        assert rows[name][k] == {}
    to_plain = rows["mic"][names.index("plain")]
    back = rows["plain"][names.index("mic")]
    assert (to_plain["gap"], back["gap"]) == ("+6.0", "-6.0")
    assert (to_plain["tone"], back["tone"]) == ("good", "bad")
    assert (to_plain["won"], to_plain["lost"]) == (back["lost"], back["won"]) == (2, 0)
    assert rows["plain"][names.index("mrl")]["tone"] == "open"


def test_tasks_and_widths_that_not_all_runs_share_are_left_out_with_a_note():
    other = run("mic", tasks={"questions": 400, "topics": 299}, widths=(16, 32))
    comparison = compare_runs([run("plain"), other], 0.95)
    assert [task.name for task in comparison.tasks] == ["questions"]
    assert list(comparison.widths) == [16, 32]
    [task_note, width_note] = comparison.notes
    assert "'topics'" in task_note and "299, 300 rows" in task_note
    assert "[64]" in width_note
    missing = compare_runs([run("plain"), run("mic", tasks={"topics": 300})], 0.95)
    assert [task.name for task in missing.tasks] == ["topics"]
    assert "1 of 2 runs lack it" in missing.notes[0]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([], "no run to compare"),
        ([run("mic"), run("mic")], "Two runs of 'mic' with seed 0"),
        ([run("mic"), run("mrl", split="dev")], "different splits"),
        ([run("mic"), run("mrl", tasks={"other": 400})], "share no task"),
        ([run("mic", widths=(16,)), run("mrl", widths=(32,))], "share no width"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs, words):
    with pytest.raises(DataError, match=words):
        compare_runs(runs, 0.95)


def test_general_tasks_have_a_mean_of_their_own():
    comparison = compare_runs([run(name, general=("topics",)) for name in METHODS], 0.95)
    groups = comparison.groups()
    assert list(groups) == ["mean", "general_mean", "questions", "topics"]
    assert groups["mean"] == groups["questions"]
    assert groups["general_mean"] == groups["topics"]


def test_without_replicates_nothing_is_claimed():
    comparison = compare_runs([run("plain"), run("mic", resamples=None)], 0.95)
    ranking = comparison.ranking(64)
    assert {row["gain_verdict"] for row in ranking} == {"", "no interval"}
    assert "nothing is claimed" in comparison.notes[0]
    assert "nothing is claimed" in answer(comparison, ranking, 64)
    assert "NaN" not in render_comparison(comparison, "two", 64)


def test_fewer_resamples_are_used_of_all():
    comparison = compare_runs([run("plain"), run("mic", resamples=50)], 0.95)
    assert "first 50 resamples" in comparison.notes[0]
    found = comparison.difference(entry(comparison, "mic"), comparison.entries[0], "mean", 64)
    assert found.low > 0.1


def test_another_untouched_model_is_shown_beside_the_first():
    other = run("mic")
    other.scores.loc[other.scores["model"] == "reference", "value"] += 0.1
    comparison = compare_runs([run("plain"), other], 0.95)
    names = [each.name for each in comparison.entries if each.transform == "none"]
    assert names == ["untouched", "untouched (of mic)", "plain", "mic"]
    assert "do not share one untouched model" in comparison.notes[0]


def test_the_width_of_the_matrix_is_the_users_or_a_usual_one():
    assert chosen_width([16, 32, 64, 128]) == 64
    assert chosen_width([4, 8, 16, 32]) == 8
    assert chosen_width([4, 8], 4) == 4
    with pytest.raises(DataError, match="--width: 5 was not scored; allowed: 4, 8"):
        chosen_width([4, 8], 5)


def test_only_parameters_that_differ_are_listed(seeds):
    assert parameter_table(seeds).rows == [["training.method", *METHODS]]


def test_speed_is_the_mean_over_the_seeds_with_its_spread(seeds):
    table = speed_table(seeds)
    place = table.columns.index("training (s)")
    assert {row[place] for row in table.rows} == {"31 ±1"}
    assert {row[1] for row in table.rows} == {"3"}


class Page(HTMLParser):
    """Collects what a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "source"):
            self.fetched.append(given.get("src") or given.get("href") or tag)


def test_the_page_holds_everything_and_fetches_nothing(seeds):
    page = render_comparison(seeds, "three seeds", 64)
    assert Page(page).fetched == ["data:,"]
    assert "url(http" not in page and "@import" not in page
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.split("</style>")[-1]))
    for words in (
        "At width 64, mic after PCA has the highest mean score",
        "Seeds 0, 1, 2: the intervals cover",
        "Differences at width 64",
        "over the mean of all widths",
        "pairs per second",
        "IsoScore",
        "training.method",
    ):
        assert words in text, words
    assert page.count('role="img"') == 3
    for run_ in seeds.runs:
        assert f'href="{run_.link}"' in page
        assert run_.run_id in page


def test_one_seed_is_called_one_seed(one_seed):
    assert "One seed per setting" in render_comparison(one_seed, "one", 64)
    assert "nothing is claimed about other seeds" in render_comparison(one_seed, "one", 64).replace(
        "\n", " "
    )


def test_names_are_escaped_and_failures_listed():
    comparison = compare_runs([run("plain")], 0.95, failures=[("mic, seed 1", "<b>out</b>")])
    page = render_comparison(comparison, "a<b>", 64)
    assert "<b>" not in page
    assert "&lt;b&gt;out&lt;/b&gt;" in page
    assert "Missing: mic, seed 1." in page
