"""The closing table for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from domain_embeddings.core.reporting import recommend, wording

_COLUMNS = ("width", "per million", "score", "loss", "against untouched", "verdict")
_LINE = 88


def render(answer: Mapping[str, Any]) -> str:
    """Write the recommendation as plain text.

    Args:
        answer: The result of ``recommend_width``.

    Returns:
        A table with one line per width, the recommended one marked with ``>``, and below it in
        words the answer, the cheap rival and the rule; no trailing line break.
    """
    lines = [list(_COLUMNS), *[_cells(row) for row in answer["widths"]]]
    widths = [max(len(line[k]) for line in lines) for k in range(len(_COLUMNS))]
    marks = [" ", *[">" if row["recommended"] else " " for row in answer["widths"]]]
    body = [
        f"{mark} {'  '.join(_pad(cell, widths[k], k) for k, cell in enumerate(line))}".rstrip()
        for mark, line in zip(marks, lines, strict=True)
    ]
    body.insert(1, "  " + "  ".join("-" * width for width in widths))
    told = [
        answer["sentence"],
        *recommend.asides(answer),
        f"Rule: {answer['rule'][0].lower()}{answer['rule'][1:]}",
        "Scores in points of 100; sizes of float32 vectors unless another precision is named; "
        "brackets hold confidence intervals. "
        + (wording.correction(answer["tests"], answer["confidence"]) if answer["tests"] else ""),
    ]
    words = [line for part in told for line in textwrap.wrap(part, _LINE, break_on_hyphens=False)]
    return "\n".join([*body, "", *words])


def render_export(report: Mapping[str, Any]) -> str:
    """Write what was shipped as plain text.

    Args:
        report: The entry ``export_report``.

    Returns:
        One line per entry with size and folder, or the parameter that left it out; no trailing
        line break.
    """
    widths = wording.join([str(width) for width in report["widths"]])
    lines = [f"Shipped at {'width' if len(report['widths']) == 1 else 'the widths'} {widths}:"]
    for name, entry in report.items():
        if name == "widths":
            continue
        size = wording.storage(entry["bytes"])
        place = f"left out ({entry['skipped']})" if "skipped" in entry else entry["folder"]
        lines.append(f"{name:<18} {'' if 'skipped' in entry else size:>8}  {place}")
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Write one line of the table."""
    gap = wording.signed(row["difference"])
    bounds = wording.interval(row["difference_low"], row["difference_high"])
    loss = f"{wording.points(row['loss'])} {wording.interval(row['loss_low'], row['loss_high'])}"
    return [
        str(row["width"]),
        wording.storage(row["bytes_per_million"]),
        wording.points(row["score"]),
        loss.strip(),
        f"{gap} {bounds}".strip(),
        row["verdict"],
    ]


def _pad(cell: str, width: int, column: int) -> str:
    """Align numbers right and the verdict left."""
    return cell.ljust(width) if column == len(_COLUMNS) - 1 else cell.rjust(width)
