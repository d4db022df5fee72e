from __future__ import annotations

import report_data

from domain_embeddings.core.reporting.console import render
from domain_embeddings.core.reporting.recommend import recommend_width


def test_the_table_is_aligned_and_marks_the_recommendation(scores):
    answer = recommend_width(scores, report_data.WIDTHS)
    lines = render(answer).splitlines()
    table = lines[: 2 + len(report_data.WIDTHS)]
    assert [line for line in table if line.startswith(">")] == [
        ">   128       512 MB   69.4   0.4 [0.2, 0.6]     +4.3 [3.7, 4.9]  better"
    ]
    verdicts = {line.index("better") for line in table[2:]}
    assert verdicts == {table[0].index("verdict")}
    assert all(len(line) <= 88 for line in lines)
    words = " ".join(lines)
    assert "For each rival, all 42 comparisons are corrected together" in words
    assert "General text lost: over 2 general tasks" in words
    assert words.count("Ship width 128") == 1
    assert "Cheap rival, the untouched model after PCA with no weight changed: 67.6" in words
    assert "Rule: the smallest width from which on every width is shown to lose" in words


def test_scores_without_a_rival_have_a_table_too(scores):
    answer = recommend_width(scores[scores["model"] == "reference"], report_data.WIDTHS)
    assert "n/a  no interval" in render(answer)
