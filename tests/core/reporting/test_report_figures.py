from __future__ import annotations

import io
import math

import numpy as np
import pandas as pd
import plotly.io
import pytest
import report_data

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting import frames, palette, plots, static
from domain_embeddings.core.reporting.recommend import recommend_width


def test_quality_has_a_line_per_model_and_transform_in_every_panel(scores):
    figure = plots.quality_by_dimension(scores)
    lines = [trace for trace in figure.data if trace.name]
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    panels = 1 + len(report_data.TASKS)
    assert len(lines) == 4 * panels
    assert len(bands) == 2 * panels  # as is only
    assert {line.line.dash for line in lines if "PCA" in line.name} == {"dot"}
    assert {line.line.color for line in lines if "adapted" in line.name} == {
        palette.MODEL_COLOURS["adapted"]
    }
    assert sum(bool(line.showlegend) for line in lines) == 4


def test_quality_shows_the_scores_in_points_at_the_evaluated_widths(scores):
    figure = plots.quality_by_dimension(scores)
    line = next(trace for trace in figure.data if trace.name == "adapted, as is")
    wanted = scores[
        (scores["task"] == "mean")
        & (scores["model"] == "adapted")
        & (scores["transform"] == "none")
        & (scores["precision"] == "float32")
    ]
    assert list(line.x) == report_data.WIDTHS
    assert list(line.y) == pytest.approx((100 * wanted["value"]).tolist())
    assert list(figure.layout.xaxis.tickvals) == report_data.WIDTHS
    assert figure.layout.xaxis.type == "log"


def test_quality_by_size_has_a_colour_and_symbol_per_precision_and_marks_the_choices(scores):
    costs, answer = report_data.vector_costs(), recommend_width(scores, report_data.WIDTHS)
    figure = plots.quality_by_bytes(costs, answer)
    points = {trace.name: trace for trace in figure.data}
    looks = {(points[p].marker.color, points[p].marker.symbol) for p in palette.PRECISIONS}
    assert len({colour for colour, _ in looks}) == len({symbol for _, symbol in looks}) == 3
    assert list(points["int8"].x) == report_data.WIDTHS
    assert list(points["binary"].x) == [width // 8 for width in report_data.WIDTHS]
    assert list(points["recommended width"].x) == [4 * 128]
    assert list(points["cheapest by the rule"].x) == [128]
    assert figure.layout.xaxis.type == "log"
    assert [shape.y0 for shape in figure.layout.shapes] == pytest.approx(
        [100 * 0.99 * answer["widths"][-1]["score"]]
    )
    drawn = static.quality_by_bytes(costs, answer)
    assert {"float32", "int8", "binary", "recommended width", "cheapest by the rule"} <= {
        text.get_text() for text in drawn.axes[0].get_legend().get_texts()
    }
    nothing = costs.assign(quality=float("nan"))
    assert static.quality_by_bytes(nothing, answer) is None


def test_the_frontier_holds_what_nothing_beats_in_both_size_and_quality():
    costs = report_data.vector_costs()
    rows = frames.exact(costs)
    naive = {
        (row.width, row.precision)
        for row in rows.itertuples()
        if not any(
            other.bytes_per_vector <= row.bytes_per_vector
            and other.quality >= row.quality
            and (other.bytes_per_vector, other.quality) != (row.bytes_per_vector, row.quality)
            for other in rows.itertuples()
        )
    }
    edge = frames.frontier(costs)
    assert set(zip(edge["width"], edge["precision"], strict=True)) == naive
    assert edge["quality"].is_monotonic_increasing
    assert edge["bytes_per_vector"].is_monotonic_increasing
    assert 2 < len(edge) < len(rows)


def test_bands_are_left_out_without_intervals(scores):
    figure = plots.quality_by_dimension(scores.assign(low=math.nan, high=math.nan))
    assert not [trace for trace in figure.data if trace.fill == "toself"]


def test_quality_without_a_main_metric_is_refused(scores):
    with pytest.raises(DataError, match="no row of a main metric"):
        plots.quality_by_dimension(scores.assign(main=False))


def test_figures_survive_the_way_through_json_with_plain_numbers(scores):
    vectors = report_data.relation_vectors()
    figures = [
        plots.quality_by_dimension(scores),
        plots.quality_by_bytes(
            report_data.vector_costs(), recommend_width(scores, report_data.WIDTHS)
        ),
        plots.eigen_spectrum(report_data.relation_eigenspace(), report_data.shrinkage()),
        plots.task_variance_plot(report_data.geometry_scores()),
        plots.relation_map(vectors, 100, 0),
        plots.loss_curves(report_data.training_history()),
    ]
    for figure in figures:
        text = figure.to_json()
        assert "bdata" not in text  # older viewers cannot read packed arrays
        assert len(plotly.io.from_json(text).data) == len(figure.data)


def test_spectrum_counts_active_and_shrunk_directions():
    table = frames.spectrum(report_data.relation_eigenspace(), report_data.shrinkage())
    values = 0.05 * np.exp(-np.arange(768) / 45.0) + 1e-6
    assert table["active"].sum() == 213
    assert table["shrunk"].sum() == 30
    assert table["share"].iloc[99] == pytest.approx(values[:100].sum() / values.sum())
    figure = plots.eigen_spectrum(report_data.relation_eigenspace(), report_data.shrinkage())
    assert [len(trace.x) for trace in figure.data[:3]] == [213, 555, 30]


def test_negative_rounding_errors_stay_off_the_logarithmic_axis():
    eigenspace = Bundle({"eigenvalues": np.array([1.0, -1e-18]), "active": np.array([True, False])})
    shrinkage = Bundle({"shrunk": np.zeros((2, 2), dtype=bool)})
    table = frames.spectrum(eigenspace, shrinkage)
    assert table["eigenvalue"].isna().tolist() == [False, True]
    assert table["share"].tolist() == [1.0, 1.0]


def test_source_bias_is_paired_and_ordered_by_the_untouched_model():
    table = frames.source_bias(report_data.geometry_scores())
    assert list(table.columns) == ["reference", "adapted"]
    assert table.index[0] == "package_of_function"
    assert table.loc["package_of_function"].tolist() == pytest.approx([0.31, 0.31 * 0.55])


def test_empty_inputs_give_a_figure_that_says_so():
    empty = pd.DataFrame(columns=["step", "epoch", "component", "value"])
    assert plots.loss_curves(empty).layout.annotations[0].text == "Nothing was trained."
    assert static.loss_curves(empty) is None
    geometry = report_data.geometry_scores()
    without = geometry[~geometry["measure"].str.startswith("source_bias")]
    assert plots.task_variance_plot(without).layout.annotations[0].text.startswith("No bias")
    assert static.task_variance(without) is None


def test_a_map_gives_every_source_the_same_number_of_points():
    vectors = report_data.relation_vectors(rows=400)
    table, _ = frames.relation_points(vectors, 60, seed=0)
    available = np.bincount(vectors["source"], minlength=4)
    assert table["source"].value_counts().to_dict() == {
        name: min(15, count) for name, count in zip(report_data.SOURCES, available, strict=True)
    }


def test_the_first_direction_of_a_map_finds_a_planted_source():
    table, shares = frames.relation_points(report_data.relation_vectors(), 200, seed=0)
    planted = table["source"] == "package_of_function"
    assert table.loc[planted, "x"].min() > table.loc[~planted, "x"].mean() + 2.0
    assert shares[0] > shares[1] > 0


def test_a_map_equals_principal_components_computed_another_way():
    vectors = report_data.relation_vectors(rows=80)
    table, shares = frames.relation_points(vectors, 10_000, seed=0)
    x = vectors["vectors"].astype(np.float64)
    values, directions = np.linalg.eigh(np.cov(x.T))
    expected = (x - x.mean(axis=0)) @ directions[:, ::-1][:, :2]
    assert np.abs(table[["x", "y"]].to_numpy()) == pytest.approx(np.abs(expected), abs=1e-9)
    assert shares == pytest.approx((values[::-1][:2] / values.sum()).tolist())


def test_a_map_is_the_same_for_the_same_seed_only():
    vectors = report_data.relation_vectors()
    first, _ = frames.relation_points(vectors, 60, seed=1)
    again, _ = frames.relation_points(vectors, 60, seed=1)
    other, _ = frames.relation_points(vectors, 60, seed=2)
    pd.testing.assert_frame_equal(first, again)
    assert not first.equals(other)


def test_neighbours_on_the_map_are_of_one_planted_source():
    vectors = report_data.relation_vectors()
    table, _ = frames.relation_points(vectors, 200, seed=0)
    places = table[["u", "v"]].to_numpy()
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    nearest = table["source"].to_numpy()[distances.argmin(axis=1)]
    planted = (table["source"] == "package_of_function").to_numpy()
    assert planted.sum() > 10
    assert (nearest[planted] == "package_of_function").mean() > 0.9


def test_the_map_shows_both_projections_with_one_legend():
    figure = plots.relation_map(report_data.relation_vectors(), 60, 0)
    sources = len(report_data.SOURCES)
    assert len(figure.data) == 2 * sources
    assert sum(bool(trace.showlegend) for trace in figure.data) == sources
    drawn = static.relation_map(report_data.relation_vectors(), 60, 0)
    titles = [text for axes in drawn.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    assert all("% of the variance" in title for title in titles[:2])
    assert all("no unit" in title for title in titles[2:])


def test_a_map_of_equal_vectors_is_one_point():
    vectors = Bundle(
        {"vectors": np.ones((3, 4), dtype=np.float32), "source": np.zeros(3, dtype=np.int32)},
        {"sources": ["one"]},
    )
    table, shares = frames.relation_points(vectors, 10, seed=0)
    assert (table[["x", "y", "u", "v"]].to_numpy() == 0).all()
    assert shares == [0.0, 0.0]


def test_losses_come_total_first_and_optimiser_last():
    assert frames.loss_components(report_data.training_history()) == [
        "loss",
        "info_nce",
        "soft_collapse",
        "isotropy",
        "reze",
        "learning_rate",
        "grad_norm",
    ]


def test_smoothing_is_a_centred_mean_over_a_tenth_of_the_steps():
    steps = np.arange(1, 31)
    history = pd.DataFrame({"step": steps, "epoch": 0.0, "component": "loss", "value": steps**2.0})
    series = frames.loss_series(history.sample(frac=1.0, random_state=0), "loss")
    inner = (steps[:-2] ** 2 + steps[1:-1] ** 2 + steps[2:] ** 2) / 3
    assert series["smooth"].to_numpy()[1:-1] == pytest.approx(inner)


def test_the_picture_for_documents_is_a_png(scores):
    buffer = io.BytesIO()
    figure = static.quality_png(scores)
    figure.savefig(buffer, format="png", dpi=40)
    assert buffer.getvalue().startswith(b"\x89PNG")
    assert len(figure.axes) == 1 + len(report_data.TASKS)


def test_an_inline_drawing_follows_the_colours_of_the_page(scores):
    svg = static.to_svg(static.quality_mean(scores), "mean", 'score & "width"')
    assert svg.startswith("<svg")
    assert "var(--adapted)" in svg
    assert "var(--ink)" in svg
    assert not [light for _, light, _ in palette.CSS if light in svg]
    assert 'aria-label="score &amp; &quot;width&quot;"' in svg
    assert 'id="mean-' in svg
    assert 'id="figure' not in svg


def test_differences_draw_every_task_and_the_mean(scores):
    figure = static.differences(scores, 128)
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels[0] == "mean of the tasks"
    assert labels[-1] == "docstring_to_function"  # the largest gain on top
    assert len(labels) == 1 + len(report_data.TASKS)


def test_general_tasks_have_panels_of_their_own(scores):
    general = static.quality_tasks(scores, general=True)
    assert len(general.axes) == len(report_data.GENERAL) + 1
    assert len(static.quality_tasks(scores).axes) == len(report_data.TASKS)
    assert static.quality_tasks(scores[~scores["general"]], general=True) is None


def test_every_axis_of_every_figure_says_what_it_shows(scores):
    drawn = [
        static.quality_mean(scores),
        static.differences(scores, 128),
        static.eigen_spectrum(report_data.relation_eigenspace(), report_data.shrinkage()),
        static.relation_map(report_data.relation_vectors(), 40, 0),
    ]
    for figure in drawn:
        assert all(axes.get_xlabel() for axes in figure.axes)
    for figure in (drawn[0], *drawn[2:]):
        assert all(axes.get_ylabel() for axes in figure.axes)
    for figure in (static.quality_tasks(scores), static.quality_tasks(scores, general=True)):
        assert figure.get_supxlabel() == "width (dimensions)"
        assert figure.get_supylabel() == "score (points of 100)"
