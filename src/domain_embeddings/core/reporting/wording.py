"""Numbers and verdicts in words, the same in the report, the card and the terminal."""

from __future__ import annotations

import math

BETTER = "better"
WORSE = "worse"
NOISE = "within noise"
UNKNOWN = "no interval"
SAME = "no difference"

WITHIN = "within tolerance"
BEYOND = "beyond tolerance"
OPEN = "not settled"

_KILO = 1000.0


def points(value: float | None) -> str:
    """Write a score between 0 and 1 as points of 100, for example ``71.2``."""
    if value is None or math.isnan(value):
        return "n/a"
    text = f"{100 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def signed(value: float | None) -> str:
    """Write a difference of scores as signed points, for example ``+3.2``."""
    text = points(value)
    return text if text in {"n/a", "0.0"} or text.startswith("-") else f"+{text}"


def interval(low: float | None, high: float | None) -> str:
    """Write a confidence interval in points, for example ``[2.1, 4.3]``; empty if there is none."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f"[{points(low)}, {points(high)}]"


def percent(share: float | None) -> str:
    """Write a share between 0 and 1 in percent, for example ``98.7 %``."""
    return "n/a" if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def storage(count: float) -> str:
    """Write a number of bytes in decimal units, for example ``256 MB`` or ``1.54 GB``."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < _KILO:
            return f"{value:.3g} {unit}"
        value /= _KILO
    return f"{value:.3g} TB"


def verdict(value: float | None, low: float | None, high: float | None) -> str:
    """Judge a difference by its interval alone.

    Args:
        value: The difference, positive if the adapted model scores higher.
        low: Lower bound of its confidence interval.
        high: Upper bound.

    Returns:
        ``better`` or ``worse`` only if the interval leaves zero out; ``within noise`` if it holds
        zero; ``no difference`` if value and bounds are all zero; ``no interval`` if there is none.
    """
    if value is None or low is None or high is None or math.isnan(low) or math.isnan(high):
        return UNKNOWN
    if value == low == high == 0.0:
        return SAME
    if low > 0:
        return BETTER
    return WORSE if high < 0 else NOISE


def loss_verdict(low: float | None, high: float | None, tolerated: float | None) -> str:
    """Judge a loss by its interval against what is tolerated.

    Args:
        low: Lower bound of the confidence interval of the loss, positive if something is lost.
        high: Upper bound.
        tolerated: The largest loss that is accepted.

    Returns:
        ``within tolerance`` only if the whole interval is at or below the tolerated loss, ``beyond
        tolerance`` if all of it is above, ``not settled`` otherwise; ``no interval`` if there is
        none.
    """
    if low is None or high is None or tolerated is None or math.isnan(low) or math.isnan(high):
        return UNKNOWN
    if high <= tolerated:
        return WITHIN
    return BEYOND if low > tolerated else OPEN


def join(names: list[str]) -> str:
    """Join names as in a sentence: ``a, b and c``."""
    if len(names) <= 1:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 task``, ``3 tasks``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
