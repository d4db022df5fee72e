"""Clean the records of every task and count what was dropped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.labels import split_labels
from domain_embeddings.core.tasks.normalise import clean
from domain_embeddings.core.tasks.records import HELD_OUT, concat_records
from domain_embeddings.core.tasks.spec import (
    DOCUMENT_TYPES,
    LABEL_TYPES,
    PAIR_TYPES,
    PROBE_TYPES,
    SPLITS,
    TaskSpec,
)

Dropped = dict[str, Counter[str]]
_MIN_ROWS = 2


def curate(
    records: pd.DataFrame, specs: Mapping[str, TaskSpec], min_characters: int = 1
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Drop unusable records.

    Args:
        records: Task records of all tasks.
        specs: Specs by task name.
        min_characters: Fewest characters a text must have once white space is normalised.

    Returns:
        The records that are left, in order, and the report: rows read, kept and dropped by
        reason, per task and split.

    Raises:
        DataError: A task cannot support what it is used for; every such task is listed with the
            place of its rows.
    """
    frames, report, problems = [], {}, []
    for name, spec in specs.items():
        mine = records[records["task"] == name]
        kept, dropped = _curate_task(mine, spec, min_characters)
        frames.append(kept)
        report[name] = {
            split: {
                "read": int((mine["split"] == split).sum()),
                "kept": int((kept["split"] == split).sum()),
                "dropped": dict(dropped[split]),
            }
            for split in SPLITS
            if (mine["split"] == split).any()
        }
        problems += [f"Task '{name}': {problem}" for problem in _problems(kept, spec, dropped)]
    if problems:
        raise DataError("\n".join(problems))
    return concat_records(frames), {"tasks": report}


def _curate_task(
    records: pd.DataFrame, spec: TaskSpec, min_characters: int
) -> tuple[pd.DataFrame, Dropped]:
    """Apply every rule to one task."""
    dropped: Dropped = {split: Counter() for split in SPLITS}

    def drop(frame: pd.DataFrame, bad: pd.Series, reason: str) -> pd.DataFrame:
        for split, count in frame.loc[bad, "split"].value_counts().items():
            dropped[str(split)][reason] += int(count)
        return frame[~bad]

    frame = drop(records, _too_short(records, spec, min_characters), "too short")
    if spec.type in DOCUMENT_TYPES:
        frame = _without_idle_queries(frame, dropped)
        frame = drop(frame, _repeated_distractors(frame), "document already in the corpus")
    keys = _content_keys(frame, spec)
    conflict = _conflicting(frame, keys, spec)
    frame = drop(frame, conflict, "same text with another label or score")
    repeated = keys[~conflict].duplicated() & frame["text"].notna()
    frame = drop(frame, repeated, "duplicate")
    if spec.type == "classification":
        train = frame["split"] == "train"
        sizes = frame.loc[train, "label"].value_counts()
        single = frame["label"].isin(sizes[sizes == 1].index) & train
        frame = drop(frame, single, "label with a single row")
        known = frame.loc[frame["split"] == "train", "label"].unique()
        unknown = ~frame["label"].isin(known) & (frame["split"] != "train")
        frame = drop(frame, unknown, "label absent from training")
    return frame, dropped


def _too_short(frame: pd.DataFrame, spec: TaskSpec, min_characters: int) -> pd.Series:
    """Mark rows with a text of fewer than ``min_characters`` characters."""
    short = frame["text"].map(lambda text: len(clean(text)) < min_characters, na_action="ignore")
    bad = short.eq(True)
    if spec.type in (*PAIR_TYPES, *DOCUMENT_TYPES):
        second = frame["text2"].map(
            lambda text: len(clean(text)) < min_characters, na_action="ignore"
        )
        bad = bad | second.eq(True)
    return bad.astype(bool)


def _without_idle_queries(frame: pd.DataFrame, dropped: Dropped) -> pd.DataFrame:
    """Leave out held-out queries that no document is relevant for; their documents stay.

    Training counts such queries when it builds pairs.
    """
    held_out = frame["split"].isin(HELD_OUT) & frame["text"].notna()
    query = frame["text_id"].fillna(frame["text"])
    relevant = (held_out & (frame["score"] > 0)).groupby([frame["split"], query]).transform("any")
    # A split without a single relevant document is refused below.
    usable = (held_out & (frame["score"] > 0)).groupby(frame["split"]).transform("any")
    idle = held_out & usable & ~relevant.eq(True)
    if not idle.any():
        return frame
    for split, count in query[idle].groupby(frame["split"]).nunique().items():
        dropped[str(split)]["query without a relevant document"] += int(count)
    return frame.assign(
        text=frame["text"].mask(idle),
        text_id=frame["text_id"].mask(idle),
        score=frame["score"].mask(idle, 1.0),
    )


def _repeated_distractors(frame: pd.DataFrame) -> pd.Series:
    """Mark distractor documents that a pair or another distractor of the split already shows."""
    distractor = frame["text"].isna()
    # Pairs first, so that it is the distractor which is found to repeat.
    order = distractor.sort_values(kind="stable").index
    documents = pd.DataFrame({"split": frame["split"], "text": frame["text2"].map(clean)})
    repeated = documents.loc[order].duplicated().reindex(frame.index)
    return (repeated & distractor).astype(bool)


def _content_keys(frame: pd.DataFrame, spec: TaskSpec) -> pd.Series:
    """Return what makes two rows of one split repeat each other: the text, or both texts."""
    symmetric = spec.type in PAIR_TYPES
    keys = []
    for split, text, text2 in zip(frame["split"], frame["text"], frame["text2"], strict=True):
        sides = [clean(side) for side in (text, text2) if isinstance(side, str)]
        keys.append("\x1f".join([split, *(sorted(sides) if symmetric else sides)]))
    return pd.Series(keys, index=frame.index, dtype="str")


def _conflicting(frame: pd.DataFrame, keys: pd.Series, spec: TaskSpec) -> pd.Series:
    """Mark rows whose text also occurs with another label (or score)."""
    if spec.type in (*LABEL_TYPES, "pair_classification"):
        values = frame["label"]
    elif spec.type in ("sts", "summarization", *DOCUMENT_TYPES):
        values = frame["score"]
    else:
        return pd.Series(False, index=frame.index)
    distinct = values.groupby(keys).transform("nunique")
    return (distinct > 1) & frame["text"].notna()


def _problems(frame: pd.DataFrame, spec: TaskSpec, dropped: Dropped) -> Iterator[str]:
    """Say why a task cannot be used as its spec asks, and what was dropped: no report will."""
    evaluate = "evaluate" in spec.uses
    needed = ["train"] if "train" in spec.uses or spec.type in PROBE_TYPES else []
    if evaluate:
        held_out = [split for split in HELD_OUT if (frame["split"] == split).any()]
        if not held_out:
            lost = _lost(dropped, *HELD_OUT)
            yield f"no test rows are left to evaluate ({spec.where('test')}){lost}"
        needed += held_out
    for split in needed:
        mine = frame[(frame["split"] == split) & frame["text"].notna()]
        shortage = _shortage(mine, spec, split)
        if shortage:
            yield f"{shortage} in split '{split}' ({spec.where(split)}){_lost(dropped, split)}"


def _lost(dropped: Dropped, *splits: str) -> str:
    """Count the rows of splits that were dropped, by reason; empty if there are none."""
    counts = sum((dropped[split] for split in splits), Counter[str]())
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    return f"; dropped: {reasons}" if reasons else ""


def _shortage(frame: pd.DataFrame, spec: TaskSpec, split: str) -> str | None:  # noqa: PLR0911
    """Name what a split lacks, or None."""
    if frame.empty:
        return "no rows are left"
    if len(frame) < _MIN_ROWS:
        return "one row only"
    labelled = spec.type in LABEL_TYPES or (spec.type == "pair_classification" and split != "train")
    labels = _distinct_labels(frame, spec) if labelled else set()
    if labelled and not labels:
        return "no label at all"
    if labelled and len(labels) < _MIN_ROWS:
        return f"one label only ('{''.join(labels)}')"
    if spec.type == "sts" and split != "train" and frame["score"].nunique() < _MIN_ROWS:
        return f"one score only ({frame['score'].iloc[0]:g})"
    if spec.type == "summarization" and split != "train" and not _rated_texts(frame):
        return "no text with summaries of different scores"
    if spec.type in DOCUMENT_TYPES and not (frame["score"] > 0).any():
        return "no relevant document (score above 0)"
    return None


def _distinct_labels(frame: pd.DataFrame, spec: TaskSpec) -> set[str]:
    """Return every label that some row has."""
    if spec.type != "multilabel":
        return set(frame["label"])
    return {label for text in frame["label"] for label in split_labels(text)}


def _rated_texts(frame: pd.DataFrame) -> int:
    """Count the texts whose summaries have different scores."""
    return int((frame.groupby("text")["score"].nunique() >= _MIN_ROWS).sum())
