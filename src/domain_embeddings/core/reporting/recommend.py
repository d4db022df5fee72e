"""Which width to ship, and the arithmetic behind that answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import pandas as pd

from domain_embeddings.core.encoders.quantisation import bytes_per_vector
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting import frames, palette, retention, wording

VECTORS = 1_000_000
UNNESTED = ("reference", "plain")
"""Methods whose objective looks at the full width only."""
_STORAGE = (
    *("width", "precision", "bytes_per_vector", "bytes_per_million", "score", "low", "high"),
    *("loss", "loss_low", "loss_high", "loss_verdict", "kept", "passed"),
)
TOLERANCE = 0.01
"""Share of the full-width score that a width may lose where the caller names none; a run names one
(`reporting.tolerance`)."""


def recommend_width(
    scores: pd.DataFrame,
    trained_widths: Sequence[int],
    *,
    tolerance: float = TOLERANCE,
    quality_floor: float | None = None,
) -> dict[str, Any]:
    """Recommend the smallest width that is shown to be as good as the full width.

    The loss of a width is the mean score at full width minus the mean score at that width, of the
    same vectors on the same resampled test rows. A width passes

    * if the whole confidence interval of its loss is at or below ``tolerance`` times the full-width
      score: a test of non-inferiority. That no loss was *found* is not enough, because with few
      test rows no loss ever is; few rows therefore lead to a larger width, never to a smaller one;
    * without intervals (no bootstrap): if its loss itself is at or below that;
    * with ``quality_floor``, instead: if its score is at least that share of the full-width score.

    The recommended width is the smallest one from which on *every* width passes. Walking down from
    the full width and stopping at the first failure also keeps the error of the whole search at
    that of one test, so that many widths need no correction.

    By the same rule, the cheapest way to store vectors is named: for each precision, walk down from
    its full width until a width fails (its loss is that against full width in float32); of all that
    passed, take the fewest bytes. Each precision is one more search, with the error of one test.

    Args:
        scores: The tidy frame ``truncation_scores`` with its rows of task ``mean``.
        trained_widths: The widths of the training objective.
        tolerance: Share of the full-width score (0..1) that may be lost.
        quality_floor: Share of the full-width score (0..1) that is good enough, or None.

    Returns:
        A JSON-able dict: ``recommended_width``, ``full_width``, ``model``, ``rule`` (sentence),
        ``sentence`` (the answer), ``rival`` (sentence about the untouched model rotated, or
        None), ``smaller`` (sentence about the next smaller width, or None), ``retention`` (what
        became of general text, see ``retention.py``, or None), ``verdict`` and ``rival_verdict`` of
        the recommended width, ``tests`` (number of comparisons corrected together),
        ``confidence``, ``tolerance``, ``tolerated`` (the same as a score), ``quality_floor``,
        ``tasks``, ``method``, ``split``, ``widths``, one dict per width, ``storages``, one dict per
        precision and width, ``cheapest``, one of them, and ``cheaper`` (sentence about it, or None
        where float32 alone was scored). Scores are between 0 and 1, sizes in bytes; what is unknown
        is None.

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
    tolerated = None if rows[-1]["score"] is None else tolerance * rows[-1]["score"]
    for row in rows:
        _judge(row, rows[-1], tolerated, quality_floor)
    chosen = _smallest_from_which_all_pass(rows)
    for row in rows:
        row["recommended"] = row is chosen
    storages = _storages(scores, model, rows, tolerated, quality_floor)
    cheapest = min(
        (row for row in storages if row["passed"]),
        key=lambda row: (row["bytes_per_vector"], -(row["score"] or 0.0)),
    )
    answer = {
        "recommended_width": chosen["width"],
        "full_width": rows[-1]["width"],
        "model": model,
        "method": method,
        "split": _single(scores, "split"),
        "tasks": len(frames.task_names(main)),
        "tests": frames.family(main),
        "confidence": float(main["confidence"].iloc[0]),
        "tolerance": tolerance,
        "tolerated": tolerated,
        "quality_floor": quality_floor,
        "rule": _rule(rows, tolerance, tolerated, quality_floor),
        "verdict": chosen["verdict"],
        "rival_verdict": chosen["rival_verdict"],
        "widths": rows,
        "storages": storages,
        "cheapest": cheapest,
    }
    return answer | {
        "sentence": sentence(answer),
        "rival": _rival_sentence(rows, chosen),
        "cheaper": _cheaper_sentence(storages, cheapest, chosen),
        "smaller": None
        if quality_floor is not None
        else _smaller_sentence(rows, chosen, tolerated),
        "retention": retention.retention(main, chosen["width"], rows[-1]["width"]),
    }


def recommended_row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table row of the recommended width."""
    rows: list[dict[str, Any]] = answer["widths"]
    return next(row for row in rows if row["recommended"])


def asides(answer: Mapping[str, Any]) -> list[str]:
    """List what has to be said right after the answer: rival, general text, cheaper, smaller."""
    general = answer["retention"]
    lost = general["sentence"] if general and general["lost"] else None
    told = (answer["rival"], lost, answer["cheaper"], answer["smaller"])
    return [sentence for sentence in told if sentence]


def _width_row(
    main: pd.DataFrame, own: pd.DataFrame, width: int, trained: Set[int]
) -> dict[str, Any]:
    """Collect what the table says about one width."""
    reference = frames.curve(main, frames.REFERENCE)
    rotation = frames.cheap_rival(main, width)
    rotated = frames.curve(main, frames.REFERENCE, rotation)
    difference = frames.claim(frames.curve(main, frames.DIFFERENCE), width)
    against = frames.contrast(frames.ADAPTED, frames.REFERENCE, rotation)
    rival = frames.claim(frames.curve(main, against), width)
    full = frames.number(own["value"].iloc[-1])
    return {
        **_storage_row(main, own, width, frames.FLOAT32, full),
        "trained": width in trained,
        "reference": _triple(reference, width)[0],
        "difference": difference["value"],
        "difference_low": difference["low"],
        "difference_high": difference["high"],
        "difference_p": difference["p"],
        "verdict": difference["verdict"],
        "rival": _triple(rotated, width)[0],
        "rival_transform": rotation,
        "rival_difference": rival["value"],
        "rival_low": rival["low"],
        "rival_high": rival["high"],
        "rival_p": rival["p"],
        "rival_verdict": rival["verdict"],
    }


def _storage_row(
    main: pd.DataFrame, own: pd.DataFrame, width: int, precision: str, full: float | None
) -> dict[str, Any]:
    """Collect what is known about vectors of one width and precision."""
    model = str(own["model"].iloc[0])
    score, low, high = _triple(own, width)
    cut = _triple(frames.curve(main, frames.contrast(model, frames.FULL_WIDTH)), width)
    size = bytes_per_vector(width, precision)
    return {
        "width": width,
        "precision": precision,
        "bytes_per_vector": size,
        "bytes_per_million": size * VECTORS,
        "score": score,
        "low": low,
        "high": high,
        "loss": _minus(full, score),
        # The loss is the negative of "these minus full width", so its bounds change places.
        "loss_low": _negative(cut[2]),
        "loss_high": _negative(cut[1]),
        "kept": score / full if score is not None and full is not None and full > 0 else None,
    }


def _storages(
    scores: pd.DataFrame,
    model: str,
    widths: list[dict[str, Any]],
    tolerated: float | None,
    floor: float | None,
) -> list[dict[str, Any]]:
    """Judge every precision and width; ``passed`` says that it and all wider ones are accepted."""
    full = widths[-1]
    found = []
    for precision in frames.precisions(scores):
        if precision == frames.FLOAT32:
            rows = [{**row, "precision": precision} for row in widths]
        else:
            main = frames.main_scores(scores, precision)
            own = frames.curve(main, model)
            if own.empty:
                continue
            rows = [
                _storage_row(main, own, int(width), precision, full["score"]) for width in own.index
            ]
            for row in rows:
                _judge(row, full, tolerated, floor)
        passed = True
        for row in reversed(rows):
            passed = passed and row["accepted"]
            row["passed"] = passed
        found += [{name: row[name] for name in _STORAGE} for row in rows]
    return found


def _judge(
    row: dict[str, Any], full: dict[str, Any], tolerated: float | None, floor: float | None
) -> None:
    """Apply the rule to one width; note verdict and outcome in its row."""
    if row is full:
        row["loss_verdict"], row["accepted"] = "", True
        return
    verdict = wording.loss_verdict(row["loss_low"], row["loss_high"], tolerated)
    row["loss_verdict"] = verdict
    if row["kept"] is None:
        row["accepted"] = False
    elif floor is not None:
        row["accepted"] = row["kept"] >= floor
    elif verdict == wording.UNKNOWN:
        row["accepted"] = row["loss"] <= tolerated
    else:
        row["accepted"] = verdict == wording.WITHIN


def _smallest_from_which_all_pass(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Walk down from the full width until a width fails."""
    chosen = rows[-1]
    for row in reversed(rows):
        if not row["accepted"]:
            break
        chosen = row
    return chosen


def _rule(
    rows: list[dict[str, Any]], tolerance: float, tolerated: float | None, floor: float | None
) -> str:
    """State the rule that was applied."""
    if floor is not None:
        return (
            f"The smallest width from which on every width keeps at least {wording.percent(floor)} "
            "of the mean score at full width (reporting.quality_floor)."
        )
    limit = (
        f"{100 * tolerance:g} % of the mean score at full width (reporting.tolerance; here "
        f"{wording.points(tolerated)} points)"
    )
    if all(row["loss_verdict"] in ("", wording.UNKNOWN) for row in rows):
        return (
            f"The smallest width from which on every width loses at most {limit}, judged by the "
            "scores alone, because there are no intervals (evaluation.bootstrap)."
        )
    return (
        f"The smallest width from which on every width is shown to lose at most {limit}: the whole "
        "interval of its loss, taken on the same test rows, lies at or below that."
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
    gap = f"{wording.signed(row['difference'])} points {_bounds(row, 'difference')}"
    if row["verdict"] == wording.WORSE:
        return (
            f"Do not ship this model yet: at width {width} it scores below the untouched model at "
            f"that width ({gap}). It would take {cost}."
        )
    if row["rival_verdict"] == wording.WORSE:
        return (
            f"Do not ship this model yet: at width {width} it scores below the untouched model "
            f"{_after(row)}, which changes no weight "
            f"({wording.signed(row['rival_difference'])} points {_bounds(row, 'rival')}). It would "
            f"take {cost}."
        )
    claim = {
        wording.BETTER: "better than the untouched model at that width by "
        f"{wording.points(row['difference'])} points {_bounds(row, 'difference')}",
        wording.NOISE: "no gain over the untouched model at that width has been shown "
        f"({gap} is within noise)",
        wording.UNCORRECTED: "no difference to the untouched model at that width has been shown "
        f"({gap} is not enough among {wording.plural(answer['tests'], 'comparison')}, "
        f"{wording.p_value(row['difference_p'])} after correction)",
        wording.SAME: "it scores exactly as the untouched model at that width",
        wording.UNKNOWN: "its difference to the untouched model has no confidence interval, so it "
        "supports no claim",
    }[row["verdict"]]
    return f"Ship width {width}: {cost}; {claim}."


def _rival_sentence(rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> str | None:
    """Say whether the untouched model after a rotation would have been as good."""
    if chosen["rival_difference"] is None:
        return None
    gap = f"{wording.signed(chosen['rival_difference'])} points {_bounds(chosen, 'rival')}".strip()
    told = (
        f"Cheap rival, the untouched model {_after(chosen)} with no weight changed: "
        f"{wording.points(chosen['rival'])} at width {chosen['width']}. "
    ) + {
        wording.BETTER: f"The recommended vectors beat it: {gap}.",
        wording.WORSE: f"It beats the recommended vectors ({gap}).",
        wording.NOISE: "As far as these test rows tell, it would have been as good "
        f"({gap} is within noise).",
        wording.UNCORRECTED: f"No difference to the recommended vectors has been shown ({gap}, "
        f"{wording.p_value(chosen['rival_p'])} after correction).",
        wording.SAME: "It scores exactly the same.",
        wording.UNKNOWN: f"The recommended vectors differ by {gap}, without an interval and so "
        "without a claim.",
    }[str(chosen["rival_verdict"])]
    # A rotation changes no cosine at full width, so its strength shows at the other widths only.
    others = [
        str(row["width"])
        for row in rows
        if row is not chosen and row["rival_verdict"] == wording.WORSE
    ]
    if others:
        link = "Also" if chosen["rival_verdict"] == wording.WORSE else "But"
        told += (
            f" {link} at {'width' if len(others) == 1 else 'the widths'} {wording.join(others)} "
        )
        told += "the rival is better."
    return told


def _after(row: Mapping[str, Any]) -> str:
    """Name the rotation of the cheap rival at a width."""
    return palette.transform_name(str(row["rival_transform"]))


def rival_name(answer: Mapping[str, Any]) -> str:
    """Name the cheap rival of a table with all widths: the strongest rotation at each."""
    found = [_after(row) for row in answer["widths"] if row["rival"] is not None]
    names = list(dict.fromkeys(found))
    if len(names) <= 1:
        return names[0] if names else palette.transform_name(frames.RIVAL_TRANSFORM)
    return f"{' or '.join(sorted(names))}, whichever scores higher"


def _smaller_sentence(
    rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any], tolerated: float | None
) -> str | None:
    """Say that the next smaller width was left out for want of evidence alone, if that is why."""
    below = [row for row in rows if row["width"] < chosen["width"]]
    if not below or tolerated is None or below[-1]["loss_verdict"] != wording.OPEN:
        return None
    row = below[-1]
    if row["loss"] > tolerated:
        return None
    return (
        f"Width {row['width']} may do as well: a loss of {wording.points(row['loss'])} points is "
        f"tolerable, but its interval {_bounds(row, 'loss')} leaves it open. More test rows would "
        "settle it."
    )


def _cheaper_sentence(
    storages: Sequence[Mapping[str, Any]], cheapest: Mapping[str, Any], chosen: Mapping[str, Any]
) -> str | None:
    """Name the cheapest storage that the rule allows, if there was anything but float32."""
    others = [row["precision"] for row in storages if row["precision"] != frames.FLOAT32]
    if not others:
        return None
    if cheapest["precision"] == frames.FLOAT32:
        tried = " or ".join(dict.fromkeys(others))
        return f"Nothing cheaper passed the rule in {tried}."
    loss = f"{wording.points(cheapest['loss'])} points {_bounds(cheapest, 'loss')}".strip()
    size, instead = (wording.storage(row["bytes_per_million"]) for row in (cheapest, chosen))
    return (
        f"Cheapest by the same rule: width {cheapest['width']} in {cheapest['precision']}, {size} "
        f"per million vectors instead of {instead}, keeping {wording.percent(cheapest['kept'])} of "
        f"the full-width score (loss {loss})."
    )


def _bounds(row: Mapping[str, Any], name: str) -> str:
    """Write the interval of a difference."""
    return wording.interval(row[f"{name}_low"], row[f"{name}_high"])


def _triple(rows: pd.DataFrame, width: int) -> tuple[float | None, float | None, float | None]:
    """Read value, low and high of one width; None for what is missing."""
    if width not in rows.index:
        return None, None, None
    value, low, high = (frames.number(rows.loc[width, name]) for name in ("value", "low", "high"))
    return value, low, high


def _minus(left: float | None, right: float | None) -> float | None:
    """Subtract where both are known."""
    return None if left is None or right is None else left - right


def _negative(value: float | None) -> float | None:
    """Change the sign of what is known; zero stays without one."""
    return None if value is None else 0.0 - value


def _single(rows: pd.DataFrame, column: str) -> str:
    """Name the value of a column that is the same everywhere, or all of them."""
    if column not in rows:
        return ""
    return ", ".join(dict.fromkeys(str(value) for value in rows[column].dropna()))
