"""Find training rows that a held-out split asks again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.normalise import comparison_key, pair_key
from domain_embeddings.core.tasks.records import HELD_OUT
from domain_embeddings.core.tasks.spec import PAIR_TYPES, TaskSpec

MAX_EXAMPLES = 20
_SHOWN_IN_MESSAGE = 5
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True)
class _Row:
    """A record with its comparison keys.

    Args:
        asks: What a held-out row asks: its text, its query (and query with document), or its pair.
        trains: What a training row teaches: the same, and for a pair also either side alone.
        texts: Every single text it shows.
    """

    task: str
    row: int
    split: str
    origin: str
    text: str
    asks: tuple[str, ...]
    trains: tuple[str, ...]
    texts: tuple[str, ...]


def find_leakage(records: pd.DataFrame, specs: Mapping[str, TaskSpec]) -> dict[str, Any]:
    """Compare the training rows of every task with the held-out rows of every task.

    Texts count as equal when they differ in case, spacing or sentence marks only; the sides of a
    pair may be swapped. Leakage is a held-out text, query or pair that is trained on. A document
    or one side of a pair that both splits show is not: corpora are shared by design. Such texts
    are counted as ``shared_texts``.

    Args:
        records: Curated records of all tasks.
        specs: Specs by task name.

    Returns:
        The leakage report: ``total``, and per task its leaking ``train_rows``, their number by
        held-out task and split, the first examples with the origins of both rows, and
        ``shared_texts``.
    """
    tested = {name for name, spec in specs.items() if "evaluate" in spec.uses}
    rows = list(_rows(records, specs))
    asked: dict[str, _Row] = {}
    asked_by: dict[tuple[str, str], _Row] = {}
    shown: set[str] = set()
    for row in rows:
        if row.split in HELD_OUT and row.task in tested:
            shown.update(row.texts)
            for key in row.asks:
                asked.setdefault(key, row)
                asked_by.setdefault((row.task, key), row)
    train: dict[str, list[tuple[_Row, _Row | None]]] = {name: [] for name in specs}
    for row in rows:
        if row.split == "train":
            # Rows of a task that is only evaluated serve its own probe and reach no other task.
            others = asked if "train" in specs[row.task].uses else {}
            train[row.task].append((row, _first_match(row, asked_by, others)))
    tasks = {name: _task_report(matches, shown - asked.keys()) for name, matches in train.items()}
    return {"total": sum(len(task["train_rows"]) for task in tasks.values()), "tasks": tasks}


def _first_match(
    row: _Row, asked_by: Mapping[tuple[str, str], _Row], others: Mapping[str, _Row]
) -> _Row | None:
    """Return the held-out row that a training row repeats, first of its own task."""
    own = (asked_by.get((row.task, key)) for key in row.trains)
    other = (others.get(key) for key in row.trains)
    return next((found for found in (*own, *other) if found is not None), None)


def _task_report(matches: list[tuple[_Row, _Row | None]], shared: set[str]) -> dict[str, Any]:
    """Summarise the comparison of one task's training rows."""
    leaking = [(row, found) for row, found in matches if found is not None]
    by_held_out = Counter(f"{found.task}/{found.split}" for _, found in leaking)
    return {
        "train_rows": [row.row for row, _ in leaking],
        "by_held_out": dict(by_held_out),
        "shared_texts": len({key for row, _ in matches for key in row.texts} & shared),
        "examples": [
            {
                "task": row.task,
                "train": row.origin,
                "held_out_task": found.task,
                "split": found.split,
                "held_out": found.origin,
                "text": row.text[:_SHOWN_CHARACTERS],
            }
            for row, found in leaking[:MAX_EXAMPLES]
        ],
    }


def check_leakage(report: Mapping[str, Any], policy: str) -> None:
    """Stop when there is leakage and the policy does not say how to go on.

    Raises:
        DataError: Naming file and line of the first examples and the ways to continue.
    """
    if policy != "stop" or not report["total"]:
        return
    examples = [example for task in report["tasks"].values() for example in task["examples"]]
    lines = [
        f"  {item['train']} (train of '{item['task']}') repeats {item['held_out']} "
        f"({item['split']} of '{item['held_out_task']}'): {item['text']!r}"
        for item in examples[:_SHOWN_IN_MESSAGE]
    ]
    more = report["total"] - len(lines)
    lines += [f"  ... and {more} more, listed in the entry 'leakage_report'"] if more > 0 else []
    msg = "\n".join(
        [
            f"{report['total']} training rows are also in a held-out split, so scores would be "
            "too good:",
            *lines,
            "To continue, correct the files, or set 'curation.leakage: drop' to train without "
            "these rows ('allow' keeps them).",
        ]
    )
    raise DataError(msg)


def without_leakage(
    records: pd.DataFrame, report: Mapping[str, Any], policy: str
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Apply the leakage policy.

    Args:
        records: Curated records.
        report: Leakage report of the same records.
        policy: ``stop``, ``drop`` or ``allow``.

    Returns:
        The records to go on with, and the number of training rows removed per task.

    Raises:
        DataError: As :func:`check_leakage`.
    """
    check_leakage(report, policy)
    if policy != "drop":
        return records, {}
    leaking = {(name, row) for name, task in report["tasks"].items() for row in task["train_rows"]}
    train = records["split"] == "train"
    place = zip(records["task"], records["row"], strict=True)
    bad = pd.Series([item in leaking for item in place], index=records.index) & train
    return records[~bad], {
        name: len(task["train_rows"])
        for name, task in report["tasks"].items()
        if task["train_rows"]
    }


def _rows(records: pd.DataFrame, specs: Mapping[str, TaskSpec]) -> Iterator[_Row]:
    """Yield every record with its keys; a distractor document asks and teaches nothing."""
    columns = ["task", "row", "split", "origin", "text", "text2"]
    for task, number, split, origin, text, text2 in zip(
        *(records[column] for column in columns), strict=True
    ):
        sides = tuple(comparison_key(side) for side in (text, text2) if isinstance(side, str))
        asks: tuple[str, ...] = sides[:1]
        trains = asks
        if not isinstance(text, str):
            asks = trains = ()
        elif len(sides) > 1:
            pair = pair_key(text, text2)
            if specs[task].type in PAIR_TYPES:
                asks, trains = (pair,), (pair, *sides)
            else:
                asks = trains = (pair, *sides[:1])
        shown = text if isinstance(text, str) else ""
        yield _Row(task, int(number), split, origin, shown, asks, trains, sides)
