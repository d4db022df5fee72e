"""Which width to ship, and the arithmetic behind that answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting import frames, wording

BYTES_PER_NUMBER = 4
VECTORS = 1_000_000
UNNESTED = ("reference", "plain")
"""Methods whose objective looks at the full width only."""
NEGLIGIBLE = 0.01
"""A loss below this share of the full-width score is accepted without further question."""
CEILING = 0.05
"""A loss above this share is never excused as noise: few test rows must not sell a small width."""


def recommend_width(
    scores: pd.DataFrame,
    trained_widths: Sequence[int],
    quality_floor: float | None = None,
) -> dict[str, Any]:
    """Recommend the smallest width whose mean score still counts as the full-width score.

    A width passes if its mean score over the tasks, against the same model at full width,

    * with ``quality_floor``: is at least that share of it;
    * otherwise: is less than 1 % lower, or less than 5 % lower and still inside the confidence
      interval of the full-width score.

    The recommended width is the smallest one from which on *every* width passes, so that one lucky
    score in the middle decides nothing. The interval of the full-width score holds the noise of
    the test rows that both widths share; it is wider than that of a paired difference of the two
    widths would be, which is why the rule has the ceiling of 5 %.

    Args:
        scores: The tidy frame ``truncation_scores`` with its rows of task ``mean``.
        trained_widths: The widths of the training objective.
        quality_floor: Share of the full-width score (0..1) that is good enough, or None.

    Returns:
        A JSON-able dict: ``recommended_width``, ``full_width``, ``model``, ``rule`` (sentence),
        ``sentence`` (the answer), ``verdict``, ``tasks``, ``method``, ``split`` and ``widths``, one
        dict per width. Scores are between 0 and 1, sizes in bytes; what is unknown is None.

    Raises:
        DataError: If the mean rows of the shipped model are missing.
    """
    main = frames.main_scores(scores)
    model = frames.shipped_model(main)
    own = frames.curve(main, model)
    if own.empty:
        msg = f"truncation_scores has no rows of task 'mean' for the model '{model}'"
        raise DataError(msg)
    method = _single(scores[scores["model"] == model], "method")
    # The full width is part of every objective; smaller ones only of the nested methods.
    trained = {int(own.index[-1]), *(() if method in UNNESTED else trained_widths)}
    rows = [_width_row(main, own, int(width), trained) for width in own.index]
    for row in rows:
        row["accepted"] = _passes(row, rows[-1], quality_floor)
    chosen = _smallest_from_which_all_pass(rows)
    for row in rows:
        row["recommended"] = row is chosen
    answer = {
        "recommended_width": chosen["width"],
        "full_width": rows[-1]["width"],
        "model": model,
        "method": method,
        "split": _single(scores, "split"),
        "tasks": len(frames.task_names(main)),
        "quality_floor": quality_floor,
        "rule": _rule(quality_floor),
        "verdict": chosen["verdict"],
        "widths": rows,
    }
    return answer | {"sentence": sentence(answer)}


def recommended_row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table row of the recommended width."""
    rows: list[dict[str, Any]] = answer["widths"]
    return next(row for row in rows if row["recommended"])


def _width_row(
    main: pd.DataFrame, own: pd.DataFrame, width: int, trained: Set[int]
) -> dict[str, Any]:
    """Collect what the table says about one width."""
    score, low, high = _triple(own, width)
    reference = _triple(frames.curve(main, frames.REFERENCE), width)
    difference = _triple(frames.curve(main, frames.DIFFERENCE), width)
    full, full_low, _ = _triple(own, int(own.index[-1]))
    bytes_per_vector = BYTES_PER_NUMBER * width
    return {
        "width": width,
        "trained": width in trained,
        "bytes_per_vector": bytes_per_vector,
        "bytes_per_million": bytes_per_vector * VECTORS,
        "score": score,
        "low": low,
        "high": high,
        "reference": reference[0],
        "reference_low": reference[1],
        "reference_high": reference[2],
        "difference": difference[0],
        "difference_low": difference[1],
        "difference_high": difference[2],
        "verdict": wording.verdict(*difference),
        "loss": _minus(full, score),
        "kept": score / full if score is not None and full is not None and full > 0 else None,
        "inside_full_interval": full_low is not None and score is not None and score >= full_low,
    }


def _passes(row: dict[str, Any], full: dict[str, Any], floor: float | None) -> bool:
    """Apply the rule to one width."""
    if row is full:
        return True
    if row["kept"] is None:
        return False
    kept: float = row["kept"]
    if floor is not None:
        return kept >= floor
    return kept >= 1 - NEGLIGIBLE or (kept >= 1 - CEILING and bool(row["inside_full_interval"]))


def _smallest_from_which_all_pass(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Walk down from the full width until a width fails."""
    chosen = rows[-1]
    for row in reversed(rows):
        if not row["accepted"]:
            break
        chosen = row
    return chosen


def _rule(floor: float | None) -> str:
    """State the rule that was applied."""
    if floor is not None:
        return (
            f"The smallest width from which on every width keeps at least {wording.percent(floor)} "
            "of the mean score at full width (reporting.quality_floor)."
        )
    return (
        "The smallest width from which on every width loses less than 1 % of the mean score at "
        "full width, or less than 5 % while staying inside the confidence interval of that score."
    )


def sentence(answer: Mapping[str, Any]) -> str:
    """Say in one sentence what to ship and what has been shown about it."""
    row = recommended_row(answer)
    full = answer["widths"][-1]
    size = wording.storage(row["bytes_per_million"])
    if row is full:
        cost = f"{size} per million vectors; no smaller width passed the rule"
    else:
        cost = (
            f"{size} per million vectors instead of {wording.storage(full['bytes_per_million'])}, "
            f"keeping {wording.percent(row['kept'])} of the full-width score"
        )
    width = row["width"]
    if answer["model"] == frames.REFERENCE or answer["method"] == frames.REFERENCE:
        return f"Nothing was trained: the untouched model at width {width} takes {cost}."
    gap = f"{wording.signed(row['difference'])} points {_bounds(row)}"
    if row["verdict"] == wording.WORSE:
        return (
            f"Do not ship this model yet: at width {width} it scores below the untouched model at "
            f"that width ({gap}). It would take {cost}."
        )
    claim = {
        wording.BETTER: "better than the untouched model at that width by "
        f"{wording.points(row['difference'])} points {_bounds(row)}",
        wording.NOISE: "no gain over the untouched model at that width has been shown "
        f"({gap} is within noise)",
        wording.SAME: "it scores exactly as the untouched model at that width",
        wording.UNKNOWN: "its difference to the untouched model has no confidence interval, so it "
        "supports no claim",
    }[row["verdict"]]
    return f"Ship width {width}: {cost}; {claim}."


def _bounds(row: dict[str, Any]) -> str:
    """Write the interval of the difference."""
    return wording.interval(row["difference_low"], row["difference_high"])


def _triple(rows: pd.DataFrame, width: int) -> tuple[float | None, float | None, float | None]:
    """Read value, low and high of one width; None for what is missing."""
    if width not in rows.index:
        return None, None, None
    value, low, high = (_number(rows.loc[width, name]) for name in ("value", "low", "high"))
    return value, low, high


def _number(value: Any) -> float | None:
    """Turn a cell into a JSON number."""
    number = float(value)
    return number if math.isfinite(number) else None


def _minus(left: float | None, right: float | None) -> float | None:
    """Subtract where both are known."""
    return None if left is None or right is None else left - right


def _single(rows: pd.DataFrame, column: str) -> str:
    """Name the value of a column that is the same everywhere, or all of them."""
    if column not in rows:
        return ""
    return ", ".join(dict.fromkeys(str(value) for value in rows[column].dropna()))
