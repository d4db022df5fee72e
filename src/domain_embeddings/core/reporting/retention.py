"""What training did to general text: gains and losses against the untouched model, and a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from domain_embeddings.core.errors import GateError, ParameterError
from domain_embeddings.core.reporting import frames, wording


def retention(main: pd.DataFrame, width: int, full: int) -> dict[str, Any] | None:
    """Judge the mean over the general tasks at the recommended and at the full width.

    Args:
        main: The result of ``frames.main_scores``.
        width: The recommended width.
        full: The full width.

    Returns:
        A JSON-able dict: ``tasks`` (names), ``width`` and ``full_width``, ``here`` and ``full``
        (the paired difference to the untouched model at these, as of ``frames.claim``), ``lost``
        (whether a loss beyond noise was shown at either) and ``sentence``. None if no general task
        was scored for both models.
    """
    line = frames.curve(main, frames.DIFFERENCE, task=frames.GENERAL_MEAN)
    if line.empty:
        return None
    names = frames.task_names(main, general=True)
    here, there = frames.claim(line, width), frames.claim(line, full)
    places = {f"at width {width}": here, f"at full width {full}": there}
    if width == full:
        places.pop(f"at width {width}")
    told = wording.join([f"{_gap(claim)} {place}" for place, claim in places.items()])
    verdicts = {claim["verdict"] for claim in places.values()}
    lost = wording.WORSE in verdicts
    count = wording.plural(len(names), "general task")
    if lost:
        opening = f"General text lost: over {count} the model scores"
        sentence = f"{opening} {told} against the untouched model."
    elif verdicts == {wording.BETTER}:
        sentence = f"Nothing was lost on general text: over {count} it gained {told}."
    else:
        sentence = f"No loss of general text has been shown: over {count}, {told}."
    return {
        "tasks": names,
        "width": width,
        "full_width": full,
        "here": here,
        "full": there,
        "lost": lost,
        "sentence": sentence,
    }


def table(main: pd.DataFrame) -> dict[str, Any] | None:
    """Arrange gains and losses of the general tasks by width.

    Args:
        main: The result of ``frames.main_scores``.

    Returns:
        ``widths``; ``rows``, one per general task and the mean last: name, metric, n and ``cells``,
        one claim per width in words (gap, evidence, verdict); and ``tests``, the number of
        comparisons corrected together. None if there is nothing to compare.
    """
    widths = frames.evaluated_widths(main)
    rows = []
    for task in [*frames.task_names(main, general=True), frames.GENERAL_MEAN]:
        line = frames.curve(main, frames.DIFFERENCE, task=task)
        if line.empty:
            continue
        mean = task == frames.GENERAL_MEAN
        rows.append(
            {
                "name": "mean of the general tasks" if mean else task,
                "metric": "" if mean else str(line["metric"].iloc[0]),
                "n": int(line["n"].iloc[0]),
                "mean": mean,
                "cells": [wording.told(frames.claim(line, width)) for width in widths],
            }
        )
    return {"widths": widths, "rows": rows, "tests": len(widths) * len(rows)} if rows else None


def check_general_drop(answer: Mapping[str, Any], limit: float | None) -> None:
    """Fail a run that lost more general quality than is allowed.

    The drop itself is compared with the limit, not its interval: a small general set, whose
    intervals are wide, must not be a way around the gate.

    Args:
        answer: The result of ``recommend_width``.
        limit: Largest drop of the mean general score against the untouched model (0..1), at the
            recommended and at the full width; None switches the gate off.

    Raises:
        GateError: If the drop at one of the two widths is larger; with both figures.
        ParameterError: If there is a limit and nothing to hold it against.
    """
    if limit is None:
        return
    general = answer["retention"]
    if general is None:
        raise ParameterError(NO_GENERAL_TASK)
    found = {general["width"]: general["here"], general["full_width"]: general["full"]}
    beyond = {
        width: claim
        for width, claim in found.items()
        if claim["value"] is not None and -claim["value"] > limit
    }
    if not beyond:
        return
    told = wording.join([f"{_gap(claim)} at width {width}" for width, claim in beyond.items()])
    msg = (
        f"General quality dropped too far: {told} against the untouched model, mean of "
        f"{wording.join(general['tasks'])}; evaluation.max_general_drop allows "
        f"{wording.points(limit)} points. Everything was saved before this check: look at "
        "'Retention' in the report. A lower training.interpolate or training.learning_rate, or "
        "fewer training.steps, keeps more."
    )
    raise GateError(msg)


NO_GENERAL_TASK = (
    "evaluation.max_general_drop: no task is evaluated as general text, so there is nothing to "
    "hold the limit against; allowed: null, or mark a task of raw_tasks with general: true"
)


def _gap(claim: Mapping[str, Any]) -> str:
    """Write a difference with what stands behind it."""
    shown = wording.evidence(claim["low"], claim["high"], claim["p"])
    return f"{wording.signed(claim['value'])} points" + (f" ({shown})" if shown else "")
