"""The comparison report: several runs in one self-contained HTML file that looks like the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domain_embeddings.core.reporting import html, palette, sections, static, wording
from domain_embeddings.core.reporting.comparison import (
    ALL_WIDTHS,
    GENERAL_MEAN,
    UNTOUCHED,
    Comparison,
    Entry,
    ScoredRun,
)
from domain_embeddings.core.reporting.frames import ADAPTED, MEAN, REFERENCE
from domain_embeddings.core.reporting.sections import Table

_COLUMNS = 3
_MOST_NAMES = 5
_SPEED = {
    "train_seconds": "training (s)",
    "pairs_per_s": "pairs per second",
    "peak_memory_mib": "peak memory (MiB)",
    "peak_gpu_memory_mib": "peak GPU memory (MiB)",
    "steps": "steps",
}
_OWN = ("seed", "training.seed")
_NOT_TOLD_APART = (wording.NOISE, wording.UNCORRECTED, wording.SAME)


def render_comparison(
    comparison: Comparison, title: str, width: int, overlays: Sequence[tuple[str, str]] = ()
) -> str:
    """Write the comparison report.

    Args:
        comparison: Runs that are comparable.
        title: Name of the comparison.
        width: Width at which entries are compared in pairs.
        overlays: Title and address of pages elsewhere about the same runs.

    Returns:
        One self-contained HTML document.
    """
    ranking = comparison.ranking(width)
    differences = comparison.difference_table()
    return html.template("comparison.html.j2").render(
        title=title,
        width=width,
        answer=answer(comparison, ranking, width),
        about_seeds=about_seeds(comparison),
        confidence=f"{100 * comparison.confidence:g} %",
        tasks=[task.name for task in comparison.tasks if not task.general],
        rankings=[
            (at, _ranking_rows(comparison, ranking if at == width else comparison.ranking(at)))
            for at in comparison.widths
        ],
        matrices=[
            (words, matrix(comparison, differences, at))
            for words, at in (
                (f"at width {width}", width),
                ("over the mean of all widths", ALL_WIDTHS),
            )
        ],
        task_table=_task_table(comparison, width),
        scores=_score_table(comparison),
        geometry=geometry_table(comparison, width),
        speed=speed_table(comparison),
        parameters=parameter_table(comparison),
        runs=_run_rows(comparison),
        overlays=overlays,
        notes=comparison.notes,
        failures=comparison.failures,
        figures=_figures(comparison),
        **html.styles(),
    )


def answer(comparison: Comparison, ranking: Sequence[Mapping[str, Any]], width: int) -> str:
    """Say in a sentence or two what may be claimed at a width."""
    first = ranking[0]
    score = first["estimate"]
    shown = f"{wording.points(score.value)} {wording.interval(score.low, score.high)}".strip()
    named = {
        verdict: [row["entry"].name for row in ranking[1:] if row["best_verdict"] == verdict]
        for verdict in (wording.WORSE, *_NOT_TOLD_APART, wording.UNKNOWN)
    }
    beaten = named[wording.WORSE]
    open_ = [name for verdict in _NOT_TOLD_APART for name in named[verdict]]
    said = [f"At width {width}, {first['entry'].name} has the highest mean score: {shown}."]
    if beaten and len(beaten) == len(ranking) - 1:
        said.append("It is shown to be better than all others.")
    elif beaten:
        said.append(f"It is shown to be better than {_some(beaten)}.")
    if open_:
        said.append(f"It is not told apart from {_some(open_)}.")
    if named[wording.UNKNOWN]:
        said.append("Without resamples nothing is claimed about the others.")
    return " ".join(said)


def _some(names: list[str]) -> str:
    """Join names, of many the first ones."""
    rest = len(names) - _MOST_NAMES
    return wording.join(names if rest <= 1 else [*names[:_MOST_NAMES], f"{rest} others"])


def about_seeds(comparison: Comparison) -> str:
    """Say what the intervals cover."""
    counts = sorted({len(entry.seeds) for entry in comparison.entries})
    if counts == [1]:
        return (
            "One seed per setting: the intervals cover the choice of test rows only, and nothing "
            "is claimed about other seeds."
        )
    seeds = ", ".join(str(seed) for seed in comparison.seeds)
    some = "" if len(counts) == 1 else " Not every setting has all of them."
    if counts[-1] == 2:  # noqa: PLR2004 - a variance of two values
        some += " Two seeds tell next to nothing about others, hence the width; take three or more."
    return (
        f"Seeds {seeds}: the intervals cover the choice of test rows and of the seeds "
        f"(docs/method.md).{some}"
    )


def _ranking_rows(
    comparison: Comparison, ranking: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Write a ranking for the template."""
    looks = _looks(comparison)
    return [
        {
            "rank": place,
            "name": row["entry"].name,
            "colour": palette.css_variable(looks[row["entry"].variant][0]),
            "seeds": len(row["entry"].seeds),
            "score": wording.points(row["estimate"].value),
            "interval": wording.interval(row["estimate"].low, row["estimate"].high),
            "to_best": _claim(row["to_best"], row["best_verdict"]),
            "to_untouched": _claim(row["to_untouched"], row["gain_verdict"]),
        }
        for place, row in enumerate(ranking, 1)
    ]


def _claim(found: Any, verdict: str) -> dict[str, str]:
    """Write a difference; an empty verdict is a comparison with itself."""
    if not verdict:
        return {"gap": "", "evidence": "", "verdict": ""}
    return {
        "gap": wording.signed(found.value),
        "evidence": wording.interval(found.low, found.high),
        "verdict": verdict,
    }


def matrix(
    comparison: Comparison, differences: pd.DataFrame, width: int
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Lay out wins and losses: the row minus the column.

    Args:
        comparison: The comparison.
        differences: Its `Comparison.difference_table`.
        width: A width or ``ALL_WIDTHS``.

    Returns:
        Per contender its name and one cell per contender, in the order of their scores: gap, tone,
        wins and losses (over single tasks), hint; empty on the diagonal.
    """
    names = [entry.name for entry in _ordered(comparison, width)]
    here = differences[differences["width"] == width]
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    means = (MEAN, GENERAL_MEAN)
    alpha = 1 - comparison.confidence
    for (left, right), rows in here.groupby(["left", "right"], sort=False):
        mean = rows[rows["task"] == MEAN].iloc[0]
        single = rows[~rows["task"].isin(means) & (rows["p_holm"] <= alpha)]
        won, lost = int((single["value"] > 0).sum()), int((single["value"] < 0).sum())
        cells[str(left), str(right)] = _cell(mean, won, lost, 1, alpha)
        cells[str(right), str(left)] = _cell(mean, lost, won, -1, alpha)
    return [(row, [cells.get((row, column), {}) for column in names]) for row in names]


def _cell(mean: Any, won: int, lost: int, sign: int, alpha: float) -> dict[str, Any]:
    """Write one cell of the matrix."""
    value = sign * float(mean["value"])
    low, high = sorted((sign * float(mean["low"]), sign * float(mean["high"])))
    said = wording.verdict(value, low, high, float(mean["p_holm"]), 1 - alpha)
    tone = {wording.BETTER: "good", wording.WORSE: "bad"}.get(said, "open")
    p = float(mean["p_holm"])
    corrected = "" if math.isnan(p) else f", corrected p {p:.2g}"
    return {
        "gap": wording.signed(value),
        "tone": tone,
        "won": won,
        "lost": lost,
        "hint": f"{said} {wording.interval(low, high)}{corrected}".strip(),
    }


def _ordered(comparison: Comparison, width: int) -> list[Entry]:
    """Order the contenders by their mean score."""
    return sorted(
        comparison.contenders, key=lambda entry: -comparison.estimate(entry, MEAN, width).value
    )


def _task_table(comparison: Comparison, width: int) -> Table:
    """Put the scores of every task at a width side by side."""
    entries = _ordered(comparison, width)
    rows = []
    for group in comparison.groups():
        about = next((task for task in comparison.tasks if task.name == group), None)
        label = f"{group} (general)" if about is not None and about.general else group
        found = [comparison.estimate(entry, group, width) for entry in entries]
        cells = [f"{wording.points(e.value)} {wording.interval(e.low, e.high)}" for e in found]
        metric = about.metric if about else ""
        count = f"{about.n:,}" if about else ""
        rows.append([label.replace("_mean", " mean"), metric, count, *cells])
    columns = ["task", "metric", "rows", *[entry.name for entry in entries]]
    return Table(columns, rows, set(range(2, len(columns))))


def _score_table(comparison: Comparison) -> Table:
    """List every score: one row per task and entry, one column per width."""
    rows = []
    for group in comparison.groups():
        for entry in comparison.entries:
            found = [comparison.estimate(entry, group, width) for width in comparison.widths]
            rows.append([group, entry.name, *[wording.points(each.value) for each in found]])
    columns = ["task", "vectors", *[str(width) for width in comparison.widths]]
    return Table(columns, rows, set(range(2, len(columns))))


def geometry_table(comparison: Comparison, width: int) -> Table:
    """Put the measures of geometry side by side: at the width, or at the largest one they have."""
    rows = [
        {"variant": name, "measure": row["measure"], "width": row["width"], "value": row["value"]}
        for run in comparison.runs
        for name, model in _geometry_sources(run)
        for row in run.geometry.to_dict("records")
        if row["source"] == "all" and row["model"] == model
    ]
    if not rows:
        return Table(["measure"], [])
    frame = pd.DataFrame(rows)
    here = frame.groupby("measure")["width"].transform(
        lambda widths: width if (widths == width).any() else widths.max()
    )
    frame = frame[frame["width"] == here]
    names = list(dict.fromkeys([UNTOUCHED, *[run.variant for run in comparison.runs]]))
    names = [name for name in names if (frame["variant"] == name).any()]
    lines = []
    for measure, words in sections.MEASURES.items():
        chosen = frame[frame["measure"] == measure]
        if chosen.empty:
            continue
        values = [chosen.loc[chosen["variant"] == name, "value"] for name in names]
        lines.append([words, str(int(chosen["width"].iloc[0])), *[_spread(v) for v in values]])
    columns = ["measure", "width", *names]
    return Table(columns, lines, set(range(1, len(columns))))


def _geometry_sources(run: ScoredRun) -> list[tuple[str, str]]:
    """Return under which name which model of a run is shown."""
    own = [] if run.untrained else [(run.variant, ADAPTED)]
    return [(UNTOUCHED, REFERENCE), *own]


def _spread(values: pd.Series) -> str:
    """Write the mean over the seeds, with the standard deviation where it is more than rounding."""
    if values.empty:
        return ""
    mean = sections.number(float(values.mean()))
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    if not spread > abs(float(values.mean())) * 1e-3:
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN}{sections.number(spread)}"


def speed_table(comparison: Comparison) -> Table:
    """List what every variant cost, from its training reports."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for run in comparison.runs:
        if not run.untrained:
            by_variant.setdefault(run.variant, []).append(run.training)
    keys = [key for key in _SPEED if any(key in r for rs in by_variant.values() for r in rs)]
    rows = [
        [
            name,
            str(len(reports)),
            *[_spread(pd.Series([float(r[key]) for r in reports if key in r])) for key in keys],
            wording.join(sorted({str(report.get("precision", "")) for report in reports} - {""})),
            wording.join(sorted({str(report.get("device", "")) for report in reports} - {""})),
        ]
        for name, reports in by_variant.items()
    ]
    columns = ["setting", "seeds", *[_SPEED[key] for key in keys], "precision", "device"]
    return Table(columns, rows, set(range(1, len(columns) - 2)))


def parameter_table(comparison: Comparison) -> Table:
    """List the parameters in which the variants differ; the seed is no parameter here."""
    variants: dict[str, dict[str, set[str]]] = {}
    for run in comparison.runs:
        own = variants.setdefault(run.variant, {})
        for key, value in run.parameters.items():
            own.setdefault(key, set()).add(str(value))
    keys = dict.fromkeys(key for own in variants.values() for key in own if key not in _OWN)
    rows = []
    for key in keys:
        cells = [" or ".join(sorted(own.get(key, {"(not set)"}))) for own in variants.values()]
        if len(set(cells)) > 1:
            rows.append([key, *cells])
    return Table(["parameter", *variants], rows)


def _run_rows(comparison: Comparison) -> list[dict[str, str]]:
    """List the runs for the template."""
    return [
        {
            "variant": run.variant,
            "seed": str(run.seed),
            "run_id": run.run_id or "not tracked",
            "link": run.link,
            "version": run.version,
        }
        for run in comparison.runs
    ]


# --------------------------------------------------------------------------------------- figures


def _figures(comparison: Comparison) -> dict[str, Markup]:
    """Draw the figures as inline SVG."""
    drawn = {
        "curves": (curves(comparison, MEAN), "Mean score by width of every setting"),
        "gains": (gains(comparison), "Difference to the untouched model by width"),
        "tasks": (task_curves(comparison), "Score by width of every task"),
    }
    return {
        name: Markup(static.to_svg(figure, name, title))  # noqa: S704 - matplotlib escapes text
        for name, (figure, title) in drawn.items()
    }


def curves(comparison: Comparison, group: str) -> Figure:
    """Draw the scores of all contenders by width, with their intervals as bars."""
    figure = static.new_figure(4.6)
    axes = figure.add_subplot()
    _lines(axes, comparison, group, 1.9)
    count = len(comparison.groups()[group])
    axes.set_ylabel(f"mean of {wording.plural(count, 'task')} (points of 100)")
    axes.set_xlabel("width (dimensions)")
    _legend(axes)
    return figure


def task_curves(comparison: Comparison) -> Figure:
    """Draw every task in a panel of its own."""
    rows = math.ceil(len(comparison.tasks) / _COLUMNS)
    figure = static.new_figure(2.5 * rows + 0.3)
    figure.supxlabel("width (dimensions)", fontsize=9, color=palette.INK)
    figure.supylabel("score (points of 100)", fontsize=9, color=palette.INK)
    for k, task in enumerate(comparison.tasks):
        axes = figure.add_subplot(rows, _COLUMNS, k + 1)
        _lines(axes, comparison, task.name, 1.3)
        axes.set_title(task.name, fontsize=9, loc="left", color=palette.INK, pad=14)
        small = f"{task.metric}, {task.n:,} rows" + (", general" if task.general else "")
        axes.text(0, 1.03, small, transform=axes.transAxes, fontsize=7.5, color=palette.MUTED)
        axes.tick_params(labelsize=7.5)
    return figure


def gains(comparison: Comparison) -> Figure:
    """Draw the paired difference of all contenders to the untouched model by width."""
    figure = static.new_figure(4.2)
    axes = figure.add_subplot()
    static.style_axes(axes)
    axes.axhline(0, color=palette.MUTED, linewidth=1)
    untouched = comparison.entries[0]
    others = [entry for entry in comparison.contenders if entry is not untouched]
    looks = _looks(comparison)
    for place, entry in enumerate(others):
        found = [comparison.difference(entry, untouched, MEAN, w) for w in comparison.widths]
        points = [(each.value, each.low, each.high) for each in found]
        look = (*looks[entry.variant], 1.9, _shift(place, len(others)))
        _line(axes, comparison.widths, np.array(points), entry, look)
    static.width_axis(axes, list(comparison.widths), 10)
    axes.set_xlabel("width (dimensions)")
    axes.set_ylabel("minus untouched (points of 100)")
    _legend(axes)
    return figure


def _lines(axes: Axes, comparison: Comparison, group: str, line_width: float) -> None:
    """Draw one line per contender."""
    static.style_axes(axes)
    entries, looks = comparison.contenders, _looks(comparison)
    for place, entry in enumerate(entries):
        found = [comparison.estimate(entry, group, width) for width in comparison.widths]
        points = np.array([(each.value, each.low, each.high) for each in found])
        look = (*looks[entry.variant], line_width, _shift(place, len(entries)))
        _line(axes, comparison.widths, points, entry, look)
    static.width_axis(axes, list(comparison.widths), 10 if line_width > 1.5 else 7.5)  # noqa: PLR2004


def _shift(place: int, count: int) -> float:
    """Move the points of a line sideways by up to 4 %, so that intervals can be told apart."""
    return float(2 ** (0.11 * (place - (count - 1) / 2) / max(1, count - 1)))


def _line(
    axes: Axes,
    widths: Sequence[int],
    points: np.ndarray,
    entry: Entry,
    look: tuple[str, str, float, float],
) -> None:
    """Draw values, and intervals where there are some; colour and mark say the setting."""
    colour, mark, line_width, shift = look
    x = np.asarray(widths) * shift
    axes.plot(
        x,
        100 * points[:, 0],
        color=colour,
        linestyle=palette.STATIC_DASHES.get(entry.transform, "--"),
        linewidth=line_width,
        marker=mark,
        markersize=2.6 * line_width,
        label=entry.name,
    )
    known = np.isfinite(points).all(axis=1)
    axes.vlines(
        x[known], 100 * points[known, 1], 100 * points[known, 2], color=colour, linewidth=1.1
    )


def _legend(axes: Axes) -> None:
    """Put the names above the drawing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=5,
        frameon=False,
        borderaxespad=0.2,
        labelcolor=palette.INK,
        handlelength=2.4,
        columnspacing=1.4,
    )


def _looks(comparison: Comparison) -> dict[str, tuple[str, str]]:
    """Return colour and mark of every setting."""
    return palette.variant_styles([entry.variant for entry in comparison.entries])
