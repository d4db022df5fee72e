"""The tables of the report, as plain rows of text ready for a template."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.reporting import frames, palette, wording

_TRAINED_WITH_REZE = ("reze", "reze_mic")
_SEVERAL = 20
_LARGE = 100
_ROUNDING = 1e-12

MEASURES = {
    "isoscore": "IsoScore: 1 if every direction carries equal variance, 0 if one carries all",
    "isoscore_rows": "number of vectors that IsoScore was computed on",
    "effective_rank": "effective rank: number of directions in real use",
    "uniformity": "uniformity: lower is more evenly spread over the sphere",
    "alignment": "alignment: mean squared distance of the two sides of a pair; lower is closer",
    "cv": "variation of the variance from dimension to dimension; 0 is none",
    "cross_correlation_max": "largest correlation of a dimension kept with one cut off",
    "cross_correlation_mean": "mean correlation of the dimensions kept with those cut off",
    "shift": "shift: mean 1 - cosine to the untouched model",
    "cka": "linear CKA with the untouched model: 1 is the same geometry",
    "source_bias": "source bias: distance of a source's mean from the median source, mean",
    "source_bias_shrunk": "source bias in the directions in which REZE moves a source, mean",
}
_LONG_CELL = 24
_SHORT_REVISION = 8
_LONG_LIST = 8
_MAX_ROWS = 40


@dataclass(frozen=True)
class Table:
    """A table for a template.

    Args:
        columns: Headings.
        rows: Cells as text, row by row.
        numeric: Indices of the columns that hold numbers.
    """

    columns: list[str]
    rows: list[list[str]]
    numeric: set[int] = field(default_factory=set)


def task_changes(main: pd.DataFrame, width: int, full: int) -> list[dict[str, Any]]:
    """Compare both models per task, at the recommended and at the full width.

    Args:
        main: The result of ``frames.main_scores``.
        width: The recommended width.
        full: The full width.

    Returns:
        One dict per task, the largest gain at ``width`` first: task, type, metric, n, reference,
        adapted, and ``here`` and ``full`` with gap, evidence and verdict.
    """
    rows = []
    for task in frames.task_names(main):
        adapted = frames.curve(main, frames.ADAPTED, task=task)
        reference = frames.curve(main, frames.REFERENCE, task=task)
        difference = frames.curve(main, frames.DIFFERENCE, task=task)
        if width not in difference.index:
            continue
        about: dict[Any, Any] = difference.to_dict("index")[width]
        rows.append(
            {
                "task": task,
                "type": about["type"],
                "metric": about["metric"],
                "n": int(about["n"]),
                "gain": float(about["value"]),
                "reference": _score(reference, width),
                "adapted": _score(adapted, width),
                "here": wording.told(frames.claim(difference, width)),
                "full": wording.told(frames.claim(difference, full)),
            }
        )
    return sorted(rows, key=lambda row: -row["gain"])


def _score(rows: pd.DataFrame, width: int) -> str:
    """Write the score at a width."""
    values = rows["value"].to_dict()
    return wording.points(values[width]) if width in values else "n/a"


def rivals(main: pd.DataFrame, width: int, full: int) -> list[dict[str, Any]]:
    """Put the recommended vectors beside everything else one could ship.

    Other vectors at the recommended width, and the recommended ones at full width, have a paired
    difference. The rest is compared by its intervals, which is a blunter test: overlapping
    intervals settle nothing.

    Args:
        main: The result of ``frames.main_scores``.
        width: The recommended width.
        full: The full width.

    Returns:
        One dict per rival: name, model, transform, width, value, score, interval, gap (rival minus
        recommended), evidence (of the paired difference), compared (in words), chosen.
    """
    model = frames.shipped_model(main)
    own = frames.curve(main, model).to_dict("index")
    rows = []
    for other in (frames.ADAPTED, frames.REFERENCE):
        for transform in frames.transforms(main):
            for at in dict.fromkeys((width, full)):
                line = frames.curve(main, other, transform).to_dict("index")
                if at in line:
                    chosen = (other, transform, at) == (model, frames.AS_IS, width)
                    paired = _paired(main, line[at], model, width)
                    rows.append(_rival(line[at], own[width], paired, chosen=chosen))
    return rows


def _paired(
    main: pd.DataFrame, rival: Mapping[Any, Any], model: str, width: int
) -> dict[str, Any] | None:
    """Find the paired difference of a rival to the recommended vectors, if it was taken."""
    if rival["width"] == width:
        name = frames.contrast(model, str(rival["model"]), str(rival["transform"]))
    elif (rival["model"], rival["transform"]) == (model, frames.AS_IS):
        name = frames.contrast(model, frames.FULL_WIDTH)
    else:
        return None
    # Taken from the side of the recommended vectors; told from the side of the rival.
    found = frames.opposite(frames.claim(frames.curve(main, name), width))
    return None if found["verdict"] == wording.UNKNOWN else found


def _rival(
    rival: Mapping[Any, Any],
    own: Mapping[Any, Any],
    paired: Mapping[str, Any] | None,
    *,
    chosen: bool,
) -> dict[str, Any]:
    """Compare one rival with the recommended vectors."""
    shown = ""
    if chosen:
        compared = "recommended"
    elif paired is not None:
        shown, compared = wording.told(paired)["evidence"], paired["verdict"]
    else:
        compared = _by_intervals(rival, own)
    return {
        "name": palette.line_name(str(rival["model"]), str(rival["transform"])),
        "model": str(rival["model"]),
        "transform": str(rival["transform"]),
        "width": str(int(rival["width"])),
        "value": float(rival["value"]),
        "score": wording.points(rival["value"]),
        "interval": wording.interval(rival["low"], rival["high"]),
        "gap": "" if chosen else wording.signed(rival["value"] - own["value"]),
        "evidence": shown,
        "compared": compared,
        "chosen": chosen,
    }


def _by_intervals(rival: Mapping[Any, Any], own: Mapping[Any, Any]) -> str:
    """Compare two scores by their own intervals."""
    if not frames.finite(rival["low"], rival["high"], own["low"], own["high"]):
        return wording.UNKNOWN
    if rival["low"] > own["high"]:
        return "not paired: intervals apart, higher"
    if rival["high"] < own["low"]:
        return "not paired: intervals apart, lower"
    return "not paired: intervals overlap"


def costs(table: pd.DataFrame, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Lay out what storing and searching vectors costs, exact searches.

    Args:
        table: The tidy frame ``vector_costs``.
        answer: The result of ``recommend_width``; its two choices are marked.

    Returns:
        One dict per precision and width, by rising size: the cells as text, ``tags``, ``passed``
        (whether the rule allows it).
    """
    passed = {(row["width"], row["precision"]): bool(row["passed"]) for row in answer["storages"]}
    tags: dict[tuple[int, str], list[str]] = {}
    for label, rows in frames.marked(table, answer):
        for row in frames.records(rows):
            tags.setdefault((int(row["width"]), str(row["precision"])), []).append(label)
    found = []
    for row in frames.records(frames.exact(table).sort_values(["bytes_per_vector", "quality"])):
        key = (int(row["width"]), str(row["precision"]))
        whole = not row["loss"] and key[1] == frames.FLOAT32
        found.append(
            {
                **_speed_cells(row),
                "quality": wording.points(row["quality"]),
                "quality_interval": wording.interval(row["quality_low"], row["quality_high"]),
                "loss": "full width" if whole else wording.points(row["loss"]),
                "loss_interval": "" if whole else _interval(row, "loss"),
                "tags": tags.get(key, []),
                "passed": passed.get(key, False),
            }
        )
    return found


def shortlists(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Lay out what a shortlist of small vectors with rescoring costs and finds.

    Args:
        table: The tidy frame ``vector_costs``.

    Returns:
        One dict per precision and width, by rising size: the cells as text; empty if none was
        measured.
    """
    rows = table[table["search"] == "shortlist"].sort_values(["bytes_per_vector", "retrieval"])
    return [
        {
            **_speed_cells(row),
            "candidates": int(row["candidates"]),
            "rescoring_bytes": int(row["rescoring_bytes"]),
            "exact": wording.points(row["retrieval"] + row["retrieval_loss"]),
            "retrieval": wording.points(row["retrieval"]),
            "retrieval_interval": _interval(row, "retrieval"),
            "loss": wording.points(row["retrieval_loss"]),
            "loss_interval": _interval(row, "retrieval_loss"),
        }
        for row in frames.records(rows)
    ]


def _speed_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Write size, speed and recall of a row of ``vector_costs``."""
    low, high = row["queries_per_s_low"], row["queries_per_s_high"]
    return {
        "width": str(int(row["width"])),
        "precision": str(row["precision"]),
        "bytes": f"{int(row['bytes_per_vector']):,}",
        "speed": _rate(row["queries_per_s"]),
        "speed_range": f"[{_rate(low)}, {_rate(high)}]",
        "recall": wording.percent(row["recall"]),
        "recall_interval": _interval(row, "recall"),
    }


def _interval(row: Mapping[str, Any], name: str) -> str:
    """Write the interval of a column of ``vector_costs``."""
    return wording.interval(row[f"{name}_low"], row[f"{name}_high"])


def _rate(value: float) -> str:
    """Write queries per second with the two digits that a timing is worth."""
    return f"{float(f'{value:.2g}'):,.0f}"


def all_scores(main: pd.DataFrame) -> Table:
    """List every main score: one row per task, model and transform, one column per width."""
    widths = frames.evaluated_widths(main)
    rows = []
    for task in [frames.MEAN, *frames.task_names(main)]:
        for model in (frames.REFERENCE, frames.ADAPTED):
            for transform in frames.transforms(main):
                line = frames.curve(main, model, transform, task)
                if not line.empty:
                    cells = [_score(line, width) for width in widths]
                    rows.append([task, palette.line_name(model, transform), *cells])
    columns = ["task", "vectors", *[str(width) for width in widths]]
    return Table(columns, rows, set(range(2, len(columns))))


def mteb(scores: pd.DataFrame) -> Table:
    """List the scores of mteb's own tasks: one column per width.

    Args:
        scores: The tidy frame ``mteb_scores``; may be empty.

    Returns:
        One row per task and model, the mean over the tasks last; no row without scores.
    """
    widths = sorted({int(width) for width in scores["width"]})
    rows = []
    for task in sorted(set(scores["task"]), key=lambda name: (name == frames.MEAN, name)):
        for model in _models(scores):
            line = scores[(scores["task"] == task) & (scores["model"] == model)]
            about = line.to_dict("records")[0]
            values = dict(zip(line["width"], line["value"], strict=True))
            cells = [wording.points(values[width]) for width in widths]
            shown = [task, about["metric"], f"{about['n']:,}", about["revision"][:_SHORT_REVISION]]
            rows.append([*map(str, shown), palette.model_name(model), *cells])
    columns = ["task", "metric", "rows", "revision", "model", *[str(width) for width in widths]]
    return Table(columns, rows, {2, *range(5, len(columns))})


def geometry(scores: pd.DataFrame) -> Table:
    """Put the measures of geometry over all sources side by side, each at its largest width.

    Args:
        scores: The tidy frame ``geometry_scores``.

    Returns:
        One row per measure: meaning, width, and the value of every model.
    """
    rows = scores[scores["source"] == "all"]
    largest = rows.groupby("measure")["width"].transform("max")
    return _geometry_table(_in_order(rows[rows["width"] == largest]))


def geometry_by_width(scores: pd.DataFrame) -> Table:
    """List the measures that were taken at several widths: one column per width."""
    rows = scores[scores["source"] == "all"]
    rows = _in_order(rows[rows.groupby("measure")["width"].transform("nunique") > 1])
    widths = sorted({int(width) for width in rows["width"]})
    lines = []
    for measure in dict.fromkeys(rows["measure"]):
        for model in _models(rows):
            chosen = rows[(rows["measure"] == measure) & (rows["model"] == model)]
            values = dict(zip(chosen["width"], chosen["value"], strict=True))
            cells = [number(values[width]) if width in values else "" for width in widths]
            lines.append([_meaning(measure), palette.model_name(model), *cells])
    columns = ["measure", "model", *[str(width) for width in widths]]
    return Table(columns, lines, set(range(2, len(columns))))


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Order measures as in ``MEASURES``, unknown ones last."""
    order = {measure: place for place, measure in enumerate(MEASURES)}
    places = rows["measure"].map(order).fillna(len(order))
    return rows.loc[places.sort_values(kind="stable").index]


def _geometry_table(rows: pd.DataFrame) -> Table:
    """Lay out measures by model."""
    models = _models(rows)
    lines: dict[tuple[str, int], dict[str, float]] = {}
    for measure, width, model, value in zip(
        rows["measure"], rows["width"], rows["model"], rows["value"], strict=True
    ):
        lines.setdefault((str(measure), int(width)), {})[str(model)] = float(value)
    table = [
        [
            _meaning(measure),
            str(width),
            *[number(values[model]) if model in values else "" for model in models],
        ]
        for (measure, width), values in lines.items()
    ]
    columns = ["measure", "width", *[palette.model_name(model) for model in models]]
    return Table(columns, table, set(range(1, len(columns))))


def _models(rows: pd.DataFrame) -> list[str]:
    """List the models of a frame, the untouched one first."""
    return [name for name in (frames.REFERENCE, frames.ADAPTED) if (rows["model"] == name).any()]


def _meaning(measure: object) -> str:
    """Say what a measure of geometry means."""
    return MEASURES.get(str(measure), str(measure).replace("_", " "))


def reze(
    eigenspace: Bundle,
    variance: Bundle,
    shrinkage: Bundle,
    bias: pd.DataFrame,
    method: str,
) -> tuple[list[str], Table]:
    """Say in words what REZE found and did (docs/method.md, section 1).

    Args:
        eigenspace: ``relation_eigenspace``.
        variance: ``task_variance``.
        shrinkage: ``shrinkage``.
        bias: The source bias in the shrunk directions, by source and model; may be empty.
        method: The training method; only some of them use the shrinkage.

    Returns:
        Sentences, and a table of the sources: how far the mean of each is from the mean of all
        pairs, how far it is moved, and its bias before and after.
    """
    header = shrinkage.header
    active = np.asarray(eigenspace["active"], dtype=bool)
    carried = frames.spectrum(eigenspace, shrinkage)["share"][active].max() if active.any() else 0.0
    words = [
        f"{active.sum():,} of {len(active):,} directions are active: together they carry "
        f"{wording.percent(float(carried))} of the variance of the relation vectors."
    ]
    moved = moves(variance, shrinkage)
    if header.get("note"):
        words.append(f"No source is moved: {header['note']}.")
    else:
        touched = int(np.asarray(shrinkage["shrunk"], dtype=bool).any(axis=0).sum())
        words += [
            "The target moves the mean of a source by "
            f"{wording.percent(float(moved['share'].mean()))} of its distance from the mean of all "
            f"pairs, on average over the sources (mode {header.get('mode', 'unknown')}, eta "
            f"{header.get('eta', 'unknown')}).",
            f"It does so in {touched:,} of the active directions. That number is no finding: with "
            "a threshold at the median plus MAD about a third of all stand out where sources "
            "differ by chance alone. What counts is how far a source is moved.",
        ]
    if method not in _TRAINED_WITH_REZE:
        words.append(f"The method '{method}' does not use this: training was not affected by it.")
    rows = [
        [
            str(row["source"]),
            number(row["distance"]),
            number(row["moved"]),
            wording.percent(row["share"]),
            *[number(value) for value in bias.reindex([row["source"]]).to_numpy().ravel()],
        ]
        for row in frames.records(moved)
    ]
    models = [
        f"bias in moved directions, {palette.model_name(str(model))}" for model in bias.columns
    ]
    columns = ["source", "distance from the mean of all pairs", "moved by", "share", *models]
    return words, Table(columns, rows, set(range(1, len(columns))))


def moves(variance: Bundle, shrinkage: Bundle) -> pd.DataFrame:
    """Measure how far the target of REZE moves the mean of each source.

    The mean of source s changes by offset[s] + (scale[s] - 1) * mu_s in the touched directions
    (docs/method.md, section 1). The basis is orthonormal, so lengths can be taken in it.

    Args:
        variance: ``task_variance``: source_means mu (S, D) around the mean of all pairs.
        shrinkage: ``shrinkage``: columns (K,), offset and scale (S, K).

    Returns:
        Columns source, distance (norm of mu_s), moved (norm of the change), share (moved /
        distance; 0 where the distance is 0).
    """
    means = np.asarray(variance["source_means"], dtype=np.float64)
    columns = np.asarray(shrinkage["columns"], dtype=np.int64)
    offset, scale = (np.asarray(shrinkage[name], dtype=np.float64) for name in ("offset", "scale"))
    change = offset + (scale - 1.0) * means[:, columns]
    distance, moved = np.linalg.norm(means, axis=1), np.linalg.norm(change, axis=1)
    share = np.divide(moved, distance, out=np.zeros_like(moved), where=distance > 0)
    return pd.DataFrame(
        {
            "source": [str(name) for name in shrinkage.header["sources"]],
            "distance": distance,
            "moved": moved,
            "share": share,
        }
    )


def facts(report: Mapping[str, Any]) -> tuple[Table, list[str]]:
    """Turn the training report into rows of fact and value, and its notes.

    Args:
        report: ``training_report``; nested mappings become names with a colon.

    Returns:
        A table of two columns and the list of notes.
    """
    rest = {key: value for key, value in report.items() if key not in ("note", "notes")}
    notes = [report.get("note"), *(report.get("notes") or [])]
    return pairs(flatten(rest)), [str(note) for note in notes if note]


def pairs(values: Mapping[str, Any]) -> Table:
    """Tabulate names and values; what is None is left out."""
    rows = [[_words(key), text(value)] for key, value in values.items() if value is not None]
    short = all(len(row[1]) <= _LONG_CELL for row in rows)
    return Table(["item", "value"], rows, {1} if short else set())


def report_tables(title: str, report: Mapping[str, Any]) -> list[tuple[str, Table]]:
    """Turn a report entry into titled tables.

    Args:
        title: Title of the entry.
        report: A mapping. Its key ``tasks`` becomes a table with one row per task, or per task and
            split where the counts are kept by split; mappings of mappings become items of their
            own; everything else is an item with its value.

    Returns:
        Titles and tables; tables without rows are left out.
    """
    tables = []
    plain: dict[str, Any] = {}
    for key, value in report.items():
        if key == "tasks":
            tables.append((title, tabulate(_task_rows(value))))
        elif _is_nested(value):
            tables.append((f"{title}: {_words(key)}", pairs(value)))
        else:
            plain[key] = value
    named = [*tables, (f"{title}: in all" if tables else title, pairs(plain))]
    return [(name, table) for name, table in named if table.rows]


def leakage(report: Mapping[str, Any], policy: str) -> tuple[str, list[tuple[str, Table]]]:
    """Say how many training rows were found again in a held-out split.

    Args:
        report: ``leakage_report``: total, and per task train_rows, by_held_out, shared_texts and
            examples.
        policy: What was done with them: ``stop``, ``drop`` or ``allow``.

    Returns:
        A sentence; a table by task and a table of examples, if there is anything to list.
    """
    total = int(report.get("total", 0))
    tasks: Mapping[str, Any] = report.get("tasks", {})
    done = {
        "drop": "They were left out of training.",
        "allow": "They were kept, so the scores of these tasks may be too good.",
    }.get(policy, "")
    found = f"{wording.plural(total, 'training row')} found again in a held-out split. {done}"
    rows = [
        {
            "task": name,
            "rows": len(task.get("train_rows", [])),
            "found in": task.get("by_held_out", {}),
            "other texts shared": task.get("shared_texts", 0),
        }
        for name, task in tasks.items()
        if task.get("train_rows") or task.get("shared_texts")
    ]
    examples = [
        {
            "training row": item.get("train"),
            "repeats": item.get("held_out"),
            "of": f"{item.get('held_out_task')}, {item.get('split')}",
        }
        for task in tasks.values()
        for item in task.get("examples", [])
    ]
    tables = [("By task", tabulate(rows)), ("Examples", tabulate(examples[:_LONG_LIST]))]
    words = found if total else "No training row was found again in a held-out split."
    return words.strip(), [(name, table) for name, table in tables if table.rows]


def _is_nested(value: Any) -> bool:
    """Say whether a value is a mapping that holds mappings."""
    return isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values())


def _task_rows(tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Spread the counts by task, and by split inside a task, into rows."""
    rows = []
    for name, record in tasks.items():
        splits = record.get("splits", record)
        if not splits or not all(isinstance(counts, Mapping) for counts in splits.values()):
            rows.append({"task": name, **record})
            continue
        about = {
            key: cell for key, cell in record.items() if "splits" in record and key != "splits"
        }
        rows += [
            {"task": name, **about, "split": split, **counts} for split, counts in splits.items()
        ]
    return rows


def tabulate(records: list[dict[str, Any]]) -> Table:
    """Tabulate mappings, one per row; a long table is cut and says so."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    rows = [[text(record.get(column)) for column in columns] for record in records[:_MAX_ROWS]]
    if len(records) > _MAX_ROWS:
        rows.append([f"and {len(records) - _MAX_ROWS:,} more", *[""] * (len(columns) - 1)])
    return Table(
        [_words(column) for column in columns],
        rows,
        {k for k, column in enumerate(columns) if _is_numeric(records, column)},
    )


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one level, names joined with a colon."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}: ")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def number(value: float) -> str:
    """Write a number with as many digits as are worth reading."""
    value = float(value)
    if math.isnan(value):
        return "n/a"
    if abs(value) < _ROUNDING:
        return "0"
    if value.is_integer() and abs(value) >= 1:
        return f"{value:,.0f}"
    if abs(value) >= _LARGE:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= _SEVERAL else f"{value:.3g}"


def text(value: Any) -> str:
    """Write any cell; long collections are cut and say so."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{int(value):,}"
    if isinstance(value, float | np.floating):
        return number(float(value))
    if isinstance(value, Mapping):
        value = [f"{key} {text(item)}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        shown = [text(item) for item in value[:_LONG_LIST]]
        rest = len(value) - len(shown)
        return ", ".join([*shown, f"and {rest:,} more"] if rest else shown)
    return "" if value is None else str(value)


def _is_numeric(records: list[dict[str, Any]], column: str) -> bool:
    """Say whether every value of a column is a number."""
    values = [record[column] for record in records if record.get(column) is not None]
    return bool(values) and all(
        isinstance(value, int | float | np.number) and not isinstance(value, bool)
        for value in values
    )


def _words(key: str) -> str:
    """Turn a key into words."""
    known = {
        "pairs_per_s": "pairs per second",
        "peak_memory_mib": "peak memory (MiB)",
        "train_seconds": "seconds of training",
        "truncated": "share of truncated texts",
    }
    head, separator, rest = str(key).partition(": ")
    return known.get(head, head.replace("_", " ")) + separator + rest
