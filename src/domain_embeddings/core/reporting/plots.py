"""Interactive figures for kedro-viz and notebooks.

Backgrounds are transparent and the ink is a middle grey, so that a figure reads on a light and on
a dark page; a viewer with its own template overrides both. The report draws its own static
versions (``static.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.reporting import frames, palette

_INK = "#7b8087"
_LINE = "rgba(128, 134, 142, 0.28)"
_AXIS = {
    "gridcolor": _LINE,
    "linecolor": _LINE,
    "zerolinecolor": _LINE,
    "showline": True,
    "automargin": True,
    "ticks": "outside",
    "tickcolor": _LINE,
}
_TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": _INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "colorway": [colour for _, _, colour in palette.SERIES],
        "title": {"x": 0, "xref": "paper", "xanchor": "left"},
        "legend": {
            "orientation": "h",
            "yanchor": "bottom",
            "y": 1.02,
            "x": 0,
            "title": {"text": ""},
        },
    }
)
_TASK_COLUMNS = 4
_LOSS_COLUMNS = 3


def quality_by_dimension(scores: pd.DataFrame) -> go.Figure:
    """Draw the mean score by width large, and every task small below it.

    Solid lines are the vectors as they are, dotted lines the vectors after ``pca``; the band is the
    confidence interval of the solid line.

    Args:
        scores: The tidy frame ``truncation_scores``.

    Returns:
        Score times 100 over width (logarithmic, the evaluated widths as ticks).

    Raises:
        DataError: If there is no main metric.
    """
    main = frames.main_scores(scores)
    tasks = frames.task_names(main)
    lines = math.ceil(len(tasks) / _TASK_COLUMNS)
    big, small = 330, 190
    figure = make_subplots(
        rows=1 + lines,
        cols=_TASK_COLUMNS,
        specs=[
            [{"colspan": _TASK_COLUMNS}, *[None] * (_TASK_COLUMNS - 1)],
            *[[{}] * _TASK_COLUMNS for _ in range(lines)],
        ],
        subplot_titles=[f"mean of {len(tasks)} tasks", *tasks],
        row_heights=[big, *[small] * lines],
        vertical_spacing=min(0.16, 0.4 / (1 + lines)),
        horizontal_spacing=0.05,
    )
    _quality_panel(figure, main, frames.MEAN, (1, 1))
    for k, task in enumerate(tasks):
        place = (2 + k // _TASK_COLUMNS, 1 + k % _TASK_COLUMNS)
        _quality_panel(figure, main, task, place)
    widths = frames.evaluated_widths(main)
    figure.update_xaxes(type="log", tickvals=widths, ticktext=[str(w) for w in widths])
    figure.update_xaxes(title={"text": "width (dimensions)", "standoff": 4}, row=1, col=1)
    for line in range(lines):
        figure.update_yaxes(title_text="points of 100", row=2 + line, col=1)
    figure.update_yaxes(title_text="mean score (points of 100)", row=1, col=1)
    return _finish(figure, "Quality by dimension", height=160 + big + small * lines)


def _quality_panel(
    figure: go.Figure, main: pd.DataFrame, task: str, place: tuple[int, int]
) -> None:
    """Add the lines of one task."""
    for model in (frames.REFERENCE, frames.ADAPTED):
        for transform in frames.transforms(main):
            rows = frames.curve(main, model, transform, task)
            if rows.empty:
                continue
            if transform == frames.AS_IS:
                _band(figure, rows, palette.MODEL_COLOURS[model], place)
            _quality_line(figure, rows, (model, transform, task), place)


def _quality_line(
    figure: go.Figure, rows: pd.DataFrame, key: tuple[str, str, str], place: tuple[int, int]
) -> None:
    """Add one line with its numbers on hover."""
    model, transform, task = key
    trace = go.Scatter(
        x=rows["width"].tolist(),
        y=(100 * rows["value"]).tolist(),
        customdata=(100 * rows[["low", "high"]]).to_numpy().tolist(),
        mode="lines+markers",
        name=palette.line_name(model, transform),
        legendgroup=f"{model}/{transform}",
        showlegend=task == frames.MEAN,
        line={
            "color": palette.MODEL_COLOURS[model],
            "dash": palette.PLOTLY_DASHES.get(transform, "dash"),
            "width": 2.2,
        },
        marker={"size": 6},
        hovertemplate="%{y:.1f} [%{customdata[0]:.1f}, %{customdata[1]:.1f}] at width %{x}",
    )
    figure.add_trace(trace, row=place[0], col=place[1])


def _band(figure: go.Figure, rows: pd.DataFrame, colour: str, place: tuple[int, int]) -> None:
    """Add the confidence band of one line, where there is one."""
    known = rows.dropna(subset=["low", "high"])
    if known.empty:
        return
    x = known["width"].tolist()
    y = (100 * known["high"]).tolist() + (100 * known["low"]).tolist()[::-1]
    band = go.Scatter(
        x=x + x[::-1],
        y=y,
        mode="lines",
        fill="toself",
        fillcolor=_fade(colour, 0.18),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_trace(band, row=place[0], col=place[1])


def quality_by_bytes(costs: pd.DataFrame, answer: Mapping[str, Any]) -> go.Figure:
    """Draw quality over bytes per vector: one colour and symbol per precision, and the frontier.

    Args:
        costs: The tidy frame ``vector_costs``; exact searches.
        answer: The result of ``recommend_width``, whose two choices are marked.

    Returns:
        Mean score times 100 over bytes (logarithmic); the dotted line is what the rule tolerates.
    """
    figure = go.Figure()
    edge = frames.frontier(costs)
    figure.add_trace(
        go.Scatter(
            x=edge["bytes_per_vector"].tolist(),
            y=(100 * edge["quality"]).tolist(),
            mode="lines",
            name="frontier: nothing smaller is better",
            line={"color": _INK, "width": 1.4},
            hoverinfo="skip",
        )
    )
    for precision, rows in frames.exact(costs).groupby("precision", sort=False):
        figure.add_trace(_storage_points(str(precision), rows))
    for label, rows in frames.marked(costs, answer):
        figure.add_trace(
            go.Scatter(
                x=rows["bytes_per_vector"].tolist(),
                y=(100 * rows["quality"]).tolist(),
                mode="markers",
                name=label,
                marker={
                    "size": 19 if label.startswith("recommended") else 25,
                    "symbol": "circle-open" if label.startswith("recommended") else "square-open",
                    "color": palette.MODEL_COLOURS["reference"],
                    "line": {"width": 2.4},
                },
                hoverinfo="skip",
            )
        )
    floor = frames.lowest_allowed(answer)
    if floor is not None:
        figure.add_hline(
            y=100 * floor,
            line={"color": _INK, "width": 1.2, "dash": "dot"},
            annotation={"text": "least that the rule allows", "font": {"size": 10}},
            annotation_position="top left",
        )
    ticks = frames.byte_ticks(costs)
    figure.update_xaxes(
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:,}" for tick in ticks],
        title_text="bytes per vector (logarithmic)",
    )
    figure.update_yaxes(title_text="mean score (points of 100)")
    return _finish(figure, "Quality by size", height=520)


def _storage_points(precision: str, rows: pd.DataFrame) -> go.Scatter:
    """Draw the widths of one precision with their intervals."""
    colour, symbol, _ = palette.PRECISIONS[precision]
    rows = rows.sort_values("width")
    points = 100 * rows[["quality", "quality_low", "quality_high"]]
    return go.Scatter(
        x=rows["bytes_per_vector"].tolist(),
        y=points["quality"].tolist(),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": (points["quality_high"] - points["quality"]).fillna(0.0).tolist(),
            "arrayminus": (points["quality"] - points["quality_low"]).fillna(0.0).tolist(),
            "thickness": 1.2,
            "width": 0,
        },
        mode="markers+text",
        text=[str(width) for width in rows["width"]],
        textposition="bottom right",
        textfont={"size": 10},
        name=precision,
        marker={"color": colour, "symbol": symbol, "size": 9},
        customdata=rows[["width", "recall", "queries_per_s"]].to_numpy().tolist(),
        hovertemplate=(
            "width %{customdata[0]}: %{y:.1f} at %{x} bytes, recall@10 %{customdata[1]:.1%}, "
            "%{customdata[2]:,.0f} queries/s"
        ),
    )


def eigen_spectrum(eigenspace: Bundle, shrinkage: Bundle) -> go.Figure:
    """Draw the eigenvalues of the relation vectors by rank, and their cumulative share.

    Args:
        eigenspace: ``relation_eigenspace`` (docs/method.md, section 1).
        shrinkage: ``shrinkage``; its shrunk directions are marked.

    Returns:
        Two panels over the rank: eigenvalue (logarithmic) and cumulative share of the variance.
    """
    table = frames.spectrum(eigenspace, shrinkage)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.65, 0.35])
    groups = [
        ("active", table[table["active"]], palette.MODEL_COLOURS["adapted"]),
        ("not active", table[~table["active"]], _INK),
    ]
    for name, rows, colour in groups:
        figure.add_trace(
            go.Scatter(
                x=rows["rank"].tolist(),
                y=rows["eigenvalue"].tolist(),
                mode="lines",
                name=f"{name} ({len(rows)} directions)",
                line={"color": colour, "width": 2.2},
            ),
            row=1,
            col=1,
        )
    shrunk = table[table["shrunk"]]
    figure.add_trace(
        go.Scatter(
            x=shrunk["rank"].tolist(),
            y=shrunk["eigenvalue"].tolist(),
            mode="markers",
            name="REZE moves a source",
            marker={"color": palette.MODEL_COLOURS["reference"], "size": 7, "symbol": "x"},
        ),
        row=1,
        col=1,
    )
    figure.add_trace(
        go.Scatter(
            x=table["rank"].tolist(),
            y=(100 * table["share"]).tolist(),
            mode="lines",
            showlegend=False,
            name="cumulative share",
            line={"color": _INK, "width": 2.2},
        ),
        row=2,
        col=1,
    )
    figure.update_yaxes(
        type="log", title_text="eigenvalue (squared length)", exponentformat="power", row=1, col=1
    )
    figure.update_yaxes(title_text="share of variance (%)", range=[0, 104], row=2, col=1)
    figure.update_xaxes(title_text="rank of the direction", row=2, col=1)
    return _finish(figure, "Spectrum of the relation vectors", height=560)


def task_variance_plot(geometry: pd.DataFrame) -> go.Figure:
    """Draw how far every source stands from the others, before and after training.

    Args:
        geometry: The tidy frame ``geometry_scores``; measure ``source_bias``.

    Returns:
        One pair of bars per source.
    """
    table = frames.source_bias(geometry)
    if table.empty:
        return _message("No bias per source was measured.", "Source bias before and after")
    table = table[::-1]
    figure = go.Figure()
    for model in table.columns[::-1]:
        figure.add_trace(
            go.Bar(
                y=[str(name) for name in table.index],
                x=table[model].tolist(),
                orientation="h",
                name=palette.model_name(model),
                marker={"color": palette.MODEL_COLOURS[model]},
                hovertemplate="%{x:.4g}",
            )
        )
    figure.update_xaxes(
        title_text="distance of the source's mean from the median source (length of a vector)",
        rangemode="tozero",
    )
    figure.update_layout(barmode="group", bargap=0.35, legend_traceorder="reversed")
    return _finish(figure, "Source bias before and after", height=180 + 46 * len(table))


def relation_map(vectors: Bundle, points: int, seed: int) -> go.Figure:
    """Draw a sample of the relation vectors, on principal directions and by t-SNE.

    Args:
        vectors: ``relation_vectors`` of the untouched model.
        points: How many points at most; every source gives equally many.
        seed: Seed of the sample and of t-SNE.

    Returns:
        Two scatter plots side by side, coloured by source; the legend switches a source off in
        both.
    """
    table, shares = frames.relation_points(vectors, points, seed)
    figure = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=["principal directions", "t-SNE: near points are similar"],
        horizontal_spacing=0.1,
    )
    for k, name in enumerate(vectors.header["sources"]):
        rows = table[table["source"] == name]
        for column, (across, up) in enumerate((("x", "y"), ("u", "v")), 1):
            trace = go.Scatter(
                x=rows[across].round(5).tolist(),
                y=rows[up].round(5).tolist(),
                mode="markers",
                name=str(name),
                legendgroup=str(name),
                showlegend=column == 1,
                marker={
                    "color": palette.category_on_any_page(k),
                    "symbol": palette.symbol(k, palette.PLOTLY_SYMBOLS),
                    "size": 6,
                    "opacity": 0.75,
                },
            )
            figure.add_trace(trace, row=1, col=column)
    for axis, (place, share) in zip(
        (figure.update_xaxes, figure.update_yaxes),
        (("first", shares[0]), ("second", shares[1])),
        strict=True,
    ):
        axis(title_text=f"{place} direction ({100 * share:.1f} % of the variance)", row=1, col=1)
        # The scale of t-SNE has no unit, and distances between clouds no meaning.
        axis(title_text=f"t-SNE, {place} axis (no unit)", showticklabels=False, row=1, col=2)
    return _finish(figure, "Relation vectors by source, untouched model", height=560)


def loss_curves(history: pd.DataFrame) -> go.Figure:
    """Draw every logged component by step, raw and smoothed, each on its own scale.

    Args:
        history: The tidy frame ``training_history``; may be empty.

    Returns:
        One small panel per component.
    """
    names = frames.loss_components(history)
    if not names:
        return _message("Nothing was trained.", "Training")
    rows = math.ceil(len(names) / _LOSS_COLUMNS)
    figure = make_subplots(
        rows=rows,
        cols=_LOSS_COLUMNS,
        subplot_titles=names,
        vertical_spacing=min(0.16, 0.4 / rows),
        horizontal_spacing=0.09,
    )
    for k, name in enumerate(names):
        series = frames.loss_series(history, name)
        row, col = 1 + k // _LOSS_COLUMNS, 1 + k % _LOSS_COLUMNS
        for column, width, opacity in (("value", 1, 0.4), ("smooth", 2.4, 1.0)):
            figure.add_trace(
                go.Scatter(
                    x=series["step"].tolist(),
                    y=series[column].tolist(),
                    mode="lines" if len(series) > 1 else "markers",
                    name={"value": "logged", "smooth": "moving mean"}[column],
                    legendgroup=column,
                    showlegend=k == 0,
                    opacity=opacity,
                    line={"color": palette.MODEL_COLOURS["adapted"], "width": width},
                ),
                row=row,
                col=col,
            )
        figure.update_xaxes(title_text="step", row=row, col=col)
    return _finish(figure, "Training", height=140 + 220 * rows)


def _fade(colour: str, opacity: float) -> str:
    """Turn ``#rrggbb`` into a translucent colour."""
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def _message(text: str, title: str) -> go.Figure:
    """Draw an empty figure that says why it is empty."""
    figure = go.Figure()
    figure.add_annotation(text=text, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return _finish(figure, title, height=220)


def _align_left(annotation: go.layout.Annotation) -> None:
    """Put a small heading over its panel."""
    annotation.update(font={"size": 12}, yshift=2)


def _finish(figure: go.Figure, title: str, height: int) -> go.Figure:
    """Give a figure the common look."""
    top = 110
    # Subplot titles are centred by default, where they collide with the axis title above.
    figure.for_each_annotation(_align_left, selector={"yanchor": "bottom", "xanchor": "center"})
    figure.update_layout(
        template=_TEMPLATE,
        title={"text": title, "y": 1 - 22 / height, "yref": "container"},
        height=height,
        margin={"t": top, "l": 60, "r": 20, "b": 50},
        legend={"y": 1 + 26 / max(1, height - top - 50)},
        hoverlabel={"namelength": -1},
    )
    return figure
