"""Numbers and verdicts in words, the same in the report, the card and the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

BETTER = "better"
WORSE = "worse"
NOISE = "within noise"
UNKNOWN = "no interval"
SAME = "no difference"
UNCORRECTED = "not after correction"

WITHIN = "within tolerance"
BEYOND = "beyond tolerance"
OPEN = "not settled"

_KILO = 1000.0
_SMALL_P, _ROUND_P = 0.001, 0.1


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


def p_value(p: float | None) -> str:
    """Write a p-value, for example ``p 0.012``; empty if there is none."""
    if p is None or math.isnan(p):
        return ""
    if p < _SMALL_P:
        return "p < 0.001"
    return f"p {p:.3f}" if p < _ROUND_P else f"p {p:.2f}"


def evidence(low: float | None, high: float | None, p: float | None) -> str:
    """Write what stands behind a claim: ``[2.1, 4.3], p 0.012``; empty if there is nothing."""
    return ", ".join(part for part in (interval(low, high), p_value(p)) if part)


def verdict(
    value: float | None,
    low: float | None,
    high: float | None,
    p: float | None,
    confidence: float = 0.95,
) -> str:
    """Judge a difference by its interval and by its p-value after correction.

    Args:
        value: The difference, positive if the left side scores higher.
        low: Lower bound of its confidence interval.
        high: Upper bound.
        p: Two-sided p-value, corrected for the number of comparisons.
        confidence: Mass of the interval (0..1).

    Returns:
        ``better`` or ``worse`` only if the interval leaves zero out and p is at most 1 -
        confidence; ``not after correction`` if the interval alone would allow the claim; ``within
        noise`` if it holds zero; ``no difference`` if value and bounds are all zero; ``no
        interval`` if a bound or p is missing.
    """
    if value is None or low is None or high is None or p is None:
        return UNKNOWN
    if math.isnan(low) or math.isnan(high) or math.isnan(p):
        return UNKNOWN
    if value == low == high == 0.0:
        return SAME
    if low <= 0 <= high:
        return NOISE
    if p > 1.0 - confidence:
        return UNCORRECTED
    return BETTER if low > 0 else WORSE


def told(claim: Mapping[str, Any]) -> dict[str, str]:
    """Write a claim (``frames.claim``) for a table: gap, evidence and verdict."""
    return {
        "gap": signed(claim["value"]),
        "evidence": evidence(claim["low"], claim["high"], claim["p"]),
        "verdict": claim["verdict"],
    }


def correction(tests: int, confidence: float) -> str:
    """State when "better" and "worse" are said, and over which family of tests.

    Args:
        tests: Number of comparisons with one rival, which are a family of their own.
        confidence: Mass of the intervals (0..1).
    """
    return (
        "\N{LEFT DOUBLE QUOTATION MARK}Better\N{RIGHT DOUBLE QUOTATION MARK} and "
        "\N{LEFT DOUBLE QUOTATION MARK}worse\N{RIGHT DOUBLE QUOTATION MARK} are said only where "
        "the interval of the paired difference leaves out zero and its two-sided bootstrap "
        f"p-value, corrected by Holm's method, is at most {1 - confidence:.2g}. For each rival, "
        f"all {plural(tests, 'comparison')} are corrected together: the mean and every task, at "
        "every width. Intervals are those of single comparisons; p-values are shown corrected."
    )


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
