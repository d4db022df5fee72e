"""Static figures (matplotlib): pictures for documents and MLflow, inline SVG for the report.

Figures are built without pyplot, so drawing leaves no global state behind.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.reporting import frames, palette, wording

_WIDTH = 10.5
_TASK_COLUMNS = 4
_LOSS_COLUMNS = 4
_MAP_COLUMNS = 5
_SMALLEST_SHOWN = 1e-6
_ID = re.compile(r'(\bid="|url\(#|xlink:href="#)')


def quality_png(scores: pd.DataFrame) -> Figure:
    """Draw quality by dimension as one picture: the mean large, every task small below it.

    Args:
        scores: The tidy frame ``truncation_scores``.

    Returns:
        A matplotlib figure on a white background; save it with ``savefig``.

    Raises:
        DataError: If there is no main metric.
    """
    main = frames.main_scores(scores)
    tasks = frames.task_names(main)
    lines = math.ceil(len(tasks) / _TASK_COLUMNS)
    figure = new_figure(4.2 + 1.9 * lines, facecolor="white")
    grid = figure.add_gridspec(1 + lines, _TASK_COLUMNS, height_ratios=[4.2, *[1.9] * lines])
    axes = figure.add_subplot(grid[0, :])
    _mean_panel(axes, main, len(tasks))
    for k, task in enumerate(tasks):
        small = figure.add_subplot(grid[1 + k // _TASK_COLUMNS, k % _TASK_COLUMNS])
        _task_panel(small, main, task)
    return figure


def quality_mean(scores: pd.DataFrame) -> Figure:
    """Draw the mean score by width with its confidence bands."""
    main = frames.main_scores(scores)
    figure = new_figure(3.9)
    _mean_panel(figure.add_subplot(), main, len(frames.task_names(main)))
    return figure


def quality_tasks(scores: pd.DataFrame, *, general: bool = False) -> Figure | None:
    """Draw the score by width of every task (or general task) in a panel of its own.

    Args:
        scores: The tidy frame ``truncation_scores``.
        general: Whether the general tasks and their mean are wanted in place of the others.

    Returns:
        The figure; None if there is no such task.
    """
    main = frames.main_scores(scores)
    tasks = frames.task_names(main, general=general)
    if not tasks:
        return None
    tasks += [frames.GENERAL_MEAN] if general else []
    lines = max(1, math.ceil(len(tasks) / _TASK_COLUMNS))
    figure = new_figure(2.05 * lines + 0.6)
    for k, task in enumerate(tasks):
        _task_panel(figure.add_subplot(lines, _TASK_COLUMNS, k + 1), main, task)
    figure.supxlabel("width (dimensions)", fontsize=9, color=palette.INK)
    figure.supylabel("score (points of 100)", fontsize=9, color=palette.INK)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside upper left",
        ncols=4,
        frameon=False,
        labelcolor=palette.INK,
        handlelength=2.6,
    )
    return figure


def _mean_panel(axes: Axes, main: pd.DataFrame, tasks: int) -> None:
    """Draw the large panel."""
    _quality_lines(axes, main, frames.MEAN, 2.0)
    width_axis(axes, frames.evaluated_widths(main), 10)
    axes.set_xlabel("width (dimensions)")
    axes.set_ylabel(f"mean of {wording.plural(tasks, 'task')} (points of 100)")
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=4,
        frameon=False,
        borderaxespad=0.2,
        labelcolor=palette.INK,
        handlelength=2.6,
        columnspacing=1.6,
    )


def _task_panel(axes: Axes, main: pd.DataFrame, task: str) -> None:
    """Draw one small panel."""
    _quality_lines(axes, main, task, 1.4)
    width_axis(axes, frames.evaluated_widths(main), 7.5)
    metric = main.loc[main["task"] == task, "metric"].iloc[0]
    name = "mean of the general tasks" if task == frames.GENERAL_MEAN else task
    axes.set_title(name, fontsize=9, loc="left", color=palette.INK, pad=14)
    axes.text(0, 1.03, metric, transform=axes.transAxes, fontsize=7.5, color=palette.MUTED)
    axes.tick_params(labelsize=7.5)


def _quality_lines(axes: Axes, main: pd.DataFrame, task: str, line_width: float) -> None:
    """Draw the lines of one task: colour says the model, dash the transform."""
    style_axes(axes)
    for model in (frames.REFERENCE, frames.ADAPTED):
        for transform in frames.transforms(main):
            rows = frames.curve(main, model, transform, task)
            if rows.empty:
                continue
            colour = palette.MODEL_COLOURS[model]
            axes.plot(
                rows["width"],
                100 * rows["value"],
                color=colour,
                linestyle=palette.STATIC_DASHES.get(transform, "--"),
                linewidth=line_width,
                marker="o",
                markersize=1.9 * line_width,
                label=palette.line_name(model, transform),
            )
            if transform == frames.AS_IS:
                axes.fill_between(
                    rows["width"],
                    100 * rows["low"],
                    100 * rows["high"],
                    color=colour,
                    alpha=0.16,
                    linewidth=0,
                )


def width_axis(axes: Axes, widths: list[int], size: float) -> None:
    """Put the evaluated widths on a logarithmic axis of base 2.

    Args:
        axes: What to draw them on.
        widths: The widths, rising.
        size: Size of their labels in points.
    """
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths], fontsize=size)
    axes.xaxis.set_minor_locator(NullLocator())


def quality_by_bytes(costs: pd.DataFrame, answer: Mapping[str, Any]) -> Figure | None:
    """Draw quality over bytes per vector with the frontier; None if there is no quality.

    Args:
        costs: The tidy frame ``vector_costs``.
        answer: The result of ``recommend_width``, whose two choices are marked.
    """
    rows = frames.exact(costs)
    if rows.empty:
        return None
    figure = new_figure(4.4)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.set_xscale("log", base=2)
    edge = frames.frontier(costs)
    axes.plot(
        edge["bytes_per_vector"],
        100 * edge["quality"],
        color=palette.MUTED,
        linewidth=1.4,
        zorder=1,
        label="nothing smaller is better",
    )
    for precision, group in rows.groupby("precision", sort=False):
        _storage_points(axes, str(precision), group.sort_values("width"))
    for label, chosen in frames.marked(costs, answer):
        recommended = label.startswith("recommended")
        axes.plot(
            chosen["bytes_per_vector"],
            100 * chosen["quality"],
            linestyle="",
            marker="o" if recommended else "s",
            markersize=15 if recommended else 18,
            fillstyle="none",
            markeredgewidth=2,
            color=palette.MODEL_COLOURS["reference"],
            label=label,
        )
    floor = frames.lowest_allowed(answer)
    if floor is not None:
        axes.axhline(
            100 * floor,
            color=palette.MUTED,
            linewidth=1.2,
            linestyle=":",
            label="least that the rule allows",
        )
    ticks = frames.byte_ticks(costs)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("bytes per vector (logarithmic)")
    axes.set_ylabel("mean score (points of 100)")
    axes.legend(frameon=False, labelcolor=palette.INK, loc="lower right", markerscale=0.7)
    return figure


def _storage_points(axes: Axes, precision: str, rows: pd.DataFrame) -> None:
    """Draw the widths of one precision with their intervals."""
    colour, _, marker = palette.PRECISIONS[precision]
    size, quality = rows["bytes_per_vector"], 100 * rows["quality"]
    axes.vlines(size, 100 * rows["quality_low"], 100 * rows["quality_high"], color=colour)
    axes.plot(
        size, quality, linestyle="", marker=marker, markersize=6, color=colour, label=precision
    )
    for width, x, y in zip(rows["width"], size, quality, strict=True):
        axes.annotate(
            str(width),
            (x, y),
            xytext=(7, -15),
            textcoords="offset points",
            fontsize=8,
            color=palette.INK,
        )


def differences(scores: pd.DataFrame, width: int) -> Figure:
    """Draw adapted minus untouched per task with its interval, at one width.

    Args:
        scores: The tidy frame ``truncation_scores``.
        width: The width to look at.

    Returns:
        One dot and whisker per task, the largest gain on top, the mean at the bottom.
    """
    main = frames.main_scores(scores)
    claims = {
        task: frames.claim(frames.curve(main, frames.DIFFERENCE, task=task), width)
        for task in [frames.MEAN, *frames.task_names(main)]
    }
    claims = {task: claim for task, claim in claims.items() if claim["value"] is not None}
    rows = sorted(claims, key=lambda task: (task != frames.MEAN, claims[task]["value"]))
    figure = new_figure(0.9 + 0.27 * len(rows))
    axes = figure.add_subplot()
    style_axes(axes, grid="x")
    axes.axvline(0, color=palette.MUTED, linewidth=1)
    for y, task in enumerate(rows):
        claim = claims[task]
        colour = _difference_colour(claim["verdict"])
        if claim["low"] is not None and claim["high"] is not None:
            axes.plot([100 * claim["low"], 100 * claim["high"]], [y, y], color=colour, lw=2.4)
        marker = "D" if task == frames.MEAN else "o"
        axes.plot([100 * claim["value"]], [y], color=colour, marker=marker, markersize=7)
    labels = ["mean of the tasks" if task == frames.MEAN else task for task in rows]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(-0.6, max(0.6, len(rows) - 0.4))
    axes.set_xlabel(f"adapted minus untouched at width {width} (points of 100)")
    return figure


def _difference_colour(verdict: str) -> str:
    """Colour a claim; grey where nothing is shown."""
    return {
        wording.BETTER: palette.MODEL_COLOURS["adapted"],
        wording.WORSE: palette.MODEL_COLOURS["reference"],
    }.get(verdict, palette.MUTED)


def eigen_spectrum(eigenspace: Bundle, shrinkage: Bundle) -> Figure:
    """Draw the eigenvalues by rank and their cumulative share (docs/method.md, section 1)."""
    table = frames.spectrum(eigenspace, shrinkage)
    figure = new_figure(3.2)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for axes in (left, right):
        style_axes(axes)
        axes.set_xlabel("rank of the direction")
    active, rest = table[table["active"]], table[~table["active"]]
    shrunk = table[table["shrunk"]]
    left.plot(
        active["rank"],
        active["eigenvalue"],
        color=palette.MODEL_COLOURS["adapted"],
        linewidth=2,
        label=f"active ({len(active)})",
    )
    left.plot(
        rest["rank"],
        rest["eigenvalue"],
        color=palette.MUTED,
        linewidth=2,
        label=f"not active ({len(rest)})",
    )
    left.plot(
        shrunk["rank"],
        shrunk["eigenvalue"],
        linestyle="",
        marker="x",
        markersize=5,
        color=palette.MODEL_COLOURS["reference"],
        label="REZE moves a source",
    )
    left.set_yscale("log")
    # Directions without any variance would take most of the axis.
    largest = float(table["eigenvalue"].max())
    if np.isfinite(largest):
        left.set_ylim(bottom=max(largest * _SMALLEST_SHOWN, 0.5 * float(table["eigenvalue"].min())))
    left.set_ylabel("eigenvalue (squared length, log)")
    left.legend(frameon=False, labelcolor=palette.INK, loc="lower left")
    right.plot(table["rank"], 100 * table["share"], color=palette.MUTED, linewidth=2)
    if len(active):
        right.axvline(len(active), color=palette.MODEL_COLOURS["adapted"], linewidth=1.4)
    right.set_ylim(0, 103)
    right.set_ylabel("cumulative share of variance (%)")
    return figure


def task_variance(geometry: pd.DataFrame) -> Figure | None:
    """Draw the bias of every source before and after training; None if it was not measured."""
    table = frames.source_bias(geometry)
    if table.empty:
        return None
    table = table[::-1]
    figure = new_figure(0.9 + 0.34 * len(table))
    axes = figure.add_subplot()
    style_axes(axes, grid="x")
    height = 0.38
    for k, model in enumerate(table.columns):
        place = np.arange(len(table)) + height * (0.5 - k) * (len(table.columns) > 1)
        axes.barh(
            place,
            table[model],
            height=height,
            color=palette.MODEL_COLOURS[model],
            label=palette.model_name(model),
        )
    axes.set_yticks(range(len(table)), [str(name) for name in table.index])
    axes.set_xlabel("distance of the source's mean from the median source (length of a vector)")
    axes.legend(frameon=False, labelcolor=palette.INK, loc="lower right")
    return figure


def relation_map(vectors: Bundle, points: int, seed: int) -> Figure:
    """Draw a sample of the relation vectors by source: principal directions, and t-SNE."""
    table, shares = frames.relation_points(vectors, points, seed)
    figure = new_figure(4.9)
    left, right = figure.subplots(1, 2)
    for axes, (across, up) in ((left, ("x", "y")), (right, ("u", "v"))):
        style_axes(axes)
        for k, name in enumerate(vectors.header["sources"]):
            rows = table[table["source"] == name]
            axes.scatter(
                rows[across],
                rows[up],
                s=14,
                color=palette.category(k),
                alpha=0.75,
                linewidths=0,
                marker=palette.symbol(k, palette.STATIC_SYMBOLS),
                label=str(name),
            )
    left.set_xlabel(f"first direction ({100 * shares[0]:.1f} % of the variance)")
    left.set_ylabel(f"second direction ({100 * shares[1]:.1f} % of the variance)")
    right.set_xlabel("t-SNE, first axis (no unit)")
    right.set_ylabel("t-SNE, second axis (no unit)")
    right.tick_params(labelbottom=False, labelleft=False)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=_MAP_COLUMNS,
        frameon=False,
        labelcolor=palette.INK,
        handletextpad=0.2,
        markerscale=1.4,
    )
    return figure


def loss_curves(history: pd.DataFrame) -> Figure | None:
    """Draw every logged component by step on its own scale; None if nothing was trained."""
    names = frames.loss_components(history)
    if not names:
        return None
    rows = math.ceil(len(names) / _LOSS_COLUMNS)
    figure = new_figure(1.75 * rows + 0.2)
    colour = palette.MODEL_COLOURS["adapted"]
    for k, name in enumerate(names):
        axes = figure.add_subplot(rows, _LOSS_COLUMNS, k + 1)
        style_axes(axes)
        series = frames.loss_series(history, name)
        marker = "o" if len(series) == 1 else ""
        axes.plot(series["step"], series["value"], color=colour, alpha=0.4, linewidth=1)
        axes.plot(series["step"], series["smooth"], color=colour, linewidth=2, marker=marker)
        axes.set_title(name, fontsize=9, loc="left", color=palette.INK)
        axes.tick_params(labelsize=7.5)
        axes.yaxis.offsetText.set(fontsize=7.5, color=palette.MUTED)
        if k + _LOSS_COLUMNS >= len(names):
            axes.set_xlabel("step", fontsize=8)
    return figure


def to_svg(figure: Figure, name: str, title: str) -> str:
    """Turn a figure into an inline SVG that follows the colours of the page.

    Args:
        figure: A figure drawn with the colours of the palette.
        name: Unique on the page; prefixes every id inside.
        title: What a screen reader says.

    Returns:
        An ``<svg>`` element: transparent, text as text, colours as CSS variables.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # A style element inside an inline drawing would apply to the whole page.
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = _ID.sub(lambda match: f"{match.group(1)}{name}-", svg)
    for variable, light, _ in palette.CSS:
        svg = svg.replace(light, f"var(--{variable})")
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*"',
        lambda match: f'<svg role="img" aria-label="{label}" {match.group(1)}width="100%"',
        re.sub(r'(<svg [^>]*?)\s+height="[^"]*"', r"\1", svg, count=1, flags=re.DOTALL),
        count=1,
        flags=re.DOTALL,
    )


def new_figure(height: float, facecolor: str = "none") -> Figure:
    """Make an empty figure of the common width.

    Args:
        height: Height in inches.
        facecolor: Colour behind everything; none by default.

    Returns:
        The figure, which makes room for labels by itself.
    """
    figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor=facecolor)
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.06)
    return figure


def style_axes(axes: Axes, grid: str = "both") -> None:
    """Quiet axes: no box, a light grid, muted ticks.

    Args:
        axes: What to style.
        grid: Where grid lines stand: ``x``, ``y`` or ``both``.
    """
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.GRID)
    axes.grid(axis=grid, color=palette.GRID, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(which="both", color=palette.GRID, labelcolor=palette.INK, labelsize=9)
    _labels(axes, [axes.xaxis.label, axes.yaxis.label])


def _labels(axes: Axes, labels: Iterable[Any]) -> None:
    """Colour the axis labels."""
    for label in labels:
        label.set_color(palette.INK)
        label.set_fontsize(9.5)
