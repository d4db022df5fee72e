"""Build training pairs from curated records, and select the rows that evaluation needs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.labels import split_labels
from domain_embeddings.core.tasks.normalise import comparison_key, pair_key, stable_hash
from domain_embeddings.core.tasks.records import concat_records
from domain_embeddings.core.tasks.spec import LABEL_TYPES, PROBE_TYPES, TaskSpec

PAIR_COLUMNS: dict[str, str] = {
    "pair_id": "int64",
    "task": "str",
    "anchor": "str",
    "positive": "str",
    "negatives": "object",
    "label": "str",
    "origin": "str",
}
# STS-B counts 4 of 0..5 as nearly equal: 0.8 of the range.
POSITIVE_FRACTION = 0.8
MAX_NEGATIVES = 4
_MIN_PAIRS = 2
# Probe rows per label: several disjoint draws of what the probe trains on.
_PROBE_DRAWS = 4


@dataclass(frozen=True)
class Pair:
    """Two texts that belong together."""

    anchor: str
    positive: str
    origin: str
    label: str | None = None
    negatives: tuple[str, ...] = ()


@dataclass
class _Outcome:
    """The pairs of one task and what became of the other rows."""

    pairs: list[Pair] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    notes: dict[str, Any] = field(default_factory=dict)


def build_pairs(
    records: pd.DataFrame,
    specs: Mapping[str, TaskSpec],
    *,
    max_pairs: int | None = None,
    seed: int = 0,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Build the training pairs of every task that is trained on.

    Args:
        records: Curated records, leaking rows already treated.
        specs: Specs by task name.
        max_pairs: Most pairs to keep of a task; a hash of the pair and the seed chooses.
        seed: Seed of the choices; equal seeds give equal tables, whatever the order of columns.

    Returns:
        The pair table (``pair_id`` is the row number), and the pairing report.

    Raises:
        DataError: Fewer than two pairs come out.
    """
    pairs: list[tuple[str, Pair]] = []
    report: dict[str, Any] = {}
    for name, spec in specs.items():
        if "train" not in spec.uses:
            continue
        mine = records[(records["task"] == name) & (records["split"] == "train")]
        outcome = _RULES[spec.type](mine[mine["text"].notna()], spec, seed)
        _drop_useless(outcome, spec)
        _sample(outcome, max_pairs, seed)
        pairs += [(name, pair) for pair in outcome.pairs]
        report[name] = _summary(outcome, spec)
    if len(pairs) < _MIN_PAIRS:
        reasons = {name: item["dropped"] for name, item in report.items()}
        msg = (
            f"{len(pairs)} training pairs in all, at least {_MIN_PAIRS} are needed; rows dropped "
            f"by task and reason: {reasons}"
        )
        raise DataError(msg)
    return _pair_frame(pairs), {"seed": seed, "total": len(pairs), "tasks": report}


def select_evaluation(
    records: pd.DataFrame, specs: Mapping[str, TaskSpec], split: str, samples_per_label: int
) -> pd.DataFrame:
    """Select the rows that evaluation needs, and no more.

    These are the rows of one held-out split (for retrieval with the documents of its corpus),
    and for classification a few training rows of each label for the probe.

    Args:
        records: Curated records, leaking rows already treated.
        specs: Specs by task name.
        split: ``dev`` or ``test``.
        samples_per_label: Rows of each label that the probe trains on.

    Returns:
        Records of the tasks that are evaluated, in their order.

    Raises:
        DataError: A task has no rows in the split, or nothing is evaluated at all.
    """
    frames, problems = [], []
    for name, spec in specs.items():
        if "evaluate" not in spec.uses:
            continue
        mine = records[records["task"] == name]
        rows = mine[mine["split"] == split]
        if not rows["text"].notna().any():
            problems.append(
                f"Task '{name}' has no rows in split '{split}', which 'evaluation.split' asks "
                f"for ({spec.where(split)}). Give it rows, choose another split, or set "
                "'uses: [train]'."
            )
        frames.append(rows)
        if spec.type in PROBE_TYPES:
            frames.append(_probe_rows(mine, spec, _PROBE_DRAWS * samples_per_label))
    if problems:
        raise DataError("\n".join(problems))
    return concat_records(frames)


def select_dev(
    records: pd.DataFrame, specs: Mapping[str, TaskSpec], samples_per_label: int
) -> pd.DataFrame:
    """Select the rows that scoring during training needs, of the tasks that have a dev split.

    Args:
        records: Curated records, leaking rows already treated.
        specs: Specs by task name.
        samples_per_label: Rows of each label that a probe trains on.

    Returns:
        Records of those tasks; none if no task that is evaluated has a dev split.
    """
    held_out = records[(records["split"] == "dev") & records["text"].notna()]
    names = set(held_out["task"])
    present = {name: spec for name, spec in specs.items() if name in names}
    return select_evaluation(records, present, "dev", samples_per_label)


def _probe_rows(records: pd.DataFrame, spec: TaskSpec, per_label: int) -> pd.DataFrame:
    """Return the first ``per_label`` training rows of each label, in the order of a hash."""
    train = records[records["split"] == "train"]
    order = train["text"].map(stable_hash).sort_values(kind="stable").index
    ordered = train.loc[order]
    each = _one_label_a_row(ordered) if spec.type == "multilabel" else ordered
    rank = each.groupby("label").cumcount()
    return train.loc[sorted(set(each.index[rank < per_label]))]


def _one_label_a_row(records: pd.DataFrame) -> pd.DataFrame:
    """Repeat every row for each of its labels; a row without labels has none (NaN)."""
    return records.assign(label=records["label"].map(split_labels)).explode("label")


# -------------------------------------------------------------------------------------- rules


def _label_pairs(records: pd.DataFrame, spec: TaskSpec, seed: int) -> _Outcome:
    """Pair each text with its label's description, or with another text of the label."""
    outcome = _Outcome(notes={"pairing": spec.pairing})
    if spec.pairing == "same_label":
        _same_label_pairs(records, spec, seed, outcome)
        return outcome
    described = spec.label_text or {}
    for text, label, origin in _columns(records, "text", "label", "origin"):
        positive = described.get(label, label.replace("_", " "))
        outcome.pairs.append(Pair(text, positive, origin, label))
    unused = sorted(set(described) - set(records["label"]))
    if unused:
        outcome.notes["label_text_without_rows"] = unused
    return outcome


def _same_label_pairs(records: pd.DataFrame, spec: TaskSpec, seed: int, outcome: _Outcome) -> None:
    """Pair each text with the next one of its label in a shuffled circle."""
    partner: dict[int, str] = {}
    for label, rows in records.groupby("label"):
        if len(rows) < _MIN_PAIRS:
            outcome.dropped["only text of its label"] += len(rows)
            continue
        generator = np.random.default_rng([seed, stable_hash(f"{spec.name}\x1f{label}")])
        order = generator.permutation(rows.index.to_numpy())
        texts = rows["text"].loc[order].tolist()
        partner.update(zip(order.tolist(), texts[1:] + texts[:1], strict=True))
    for index, text, label, origin in zip(
        records.index, *(records[name] for name in ("text", "label", "origin")), strict=True
    ):
        if index in partner:
            outcome.pairs.append(Pair(text, partner[index], origin, label))


def _multilabel_pairs(records: pd.DataFrame, spec: TaskSpec, seed: int) -> _Outcome:
    """Pair each text once for each of its labels, as classification does for its only one."""
    each = _one_label_a_row(records).reset_index(drop=True)
    bare = each["label"].isna()
    outcome = _label_pairs(each[~bare], spec, seed)
    if bare.any():
        outcome.dropped["no label applies"] += int(bare.sum())
    return outcome


def _document_pairs(records: pd.DataFrame, _spec: TaskSpec, _seed: int) -> _Outcome:
    """Pair each query with each relevant document; documents of relevance 0 are negatives."""
    outcome = _Outcome()
    negatives: dict[str, list[str]] = defaultdict(list)
    positives: set[str] = set()
    for query, document, score in _columns(records, "text_id", "text2", "score"):
        if not score > 0 and len(negatives[query]) < MAX_NEGATIVES:
            negatives[query].append(document)
        elif score > 0:
            positives.add(query)
    for query, text, document, score, origin in _columns(
        records, "text_id", "text", "text2", "score", "origin"
    ):
        if score > 0:
            outcome.pairs.append(
                Pair(text, document, origin, None, tuple(negatives.get(query, ())))
            )
        elif query not in positives:
            outcome.dropped["query without a relevant document"] += 1
        else:
            outcome.dropped["not relevant (kept as a negative)"] += 1
    return outcome


def _positive_pairs(records: pd.DataFrame, _spec: TaskSpec, _seed: int) -> _Outcome:
    """Keep the pairs labelled 1."""
    outcome = _Outcome()
    for text, text2, label, origin in _columns(records, "text", "text2", "label", "origin"):
        if label == "1":
            outcome.pairs.append(Pair(text, text2, origin))
        else:
            outcome.dropped["label 0"] += 1
    return outcome


def _scored_pairs(records: pd.DataFrame, spec: TaskSpec, _seed: int) -> _Outcome:
    """Keep the pairs at or above a score; pairs without a score are all kept."""
    threshold = spec.positive_score
    scores = records["score"].dropna()
    if threshold is None and len(scores):
        low, high = float(scores.min()), float(scores.max())
        threshold = low + POSITIVE_FRACTION * (high - low)
    outcome = _Outcome(notes={"positive_score": threshold})
    for text, text2, score, origin in _columns(records, "text", "text2", "score", "origin"):
        if math.isnan(score) or threshold is None or score >= threshold:
            outcome.pairs.append(Pair(text, text2, origin))
        else:
            outcome.dropped["score below positive_score"] += 1
    return outcome


def _all_pairs(records: pd.DataFrame, _spec: TaskSpec, _seed: int) -> _Outcome:
    """Keep every pair."""
    rows = _columns(records, "text", "text2", "origin")
    return _Outcome([Pair(text, text2, origin) for text, text2, origin in rows])


def _twins(records: pd.DataFrame, _spec: TaskSpec, _seed: int) -> _Outcome:
    """Pair each text with itself."""
    rows = _columns(records, "text", "origin")
    return _Outcome([Pair(text, text, origin) for text, origin in rows])


_RULES: dict[str, Callable[[pd.DataFrame, TaskSpec, int], _Outcome]] = {
    "classification": _label_pairs,
    "multilabel": _multilabel_pairs,
    "clustering": _label_pairs,
    "retrieval": _document_pairs,
    "reranking": _document_pairs,
    "pair_classification": _positive_pairs,
    "sts": _scored_pairs,
    "summarization": _scored_pairs,
    "bitext_mining": _all_pairs,
    "unlabelled": _twins,
}


def _columns(records: pd.DataFrame, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(records[name] for name in names), strict=True)


def _drop_useless(outcome: _Outcome, spec: TaskSpec) -> None:
    """Drop pairs that repeat another one or whose sides are equal, and negatives that are not."""
    kept: list[Pair] = []
    seen: set[str] = set()
    for pair in outcome.pairs:
        sides = comparison_key(pair.anchor), comparison_key(pair.positive)
        key = pair_key(pair.anchor, pair.positive)
        if spec.type != "unlabelled" and sides[0] == sides[1]:
            outcome.dropped["both sides equal"] += 1
        elif key in seen:
            outcome.dropped["repeats another pair"] += 1
        else:
            seen.add(key)
            kept.append(
                replace(
                    pair,
                    negatives=tuple(
                        text for text in pair.negatives if comparison_key(text) not in sides
                    ),
                )
            )
    outcome.pairs = kept


def _sample(outcome: _Outcome, limit: int | None, seed: int) -> None:
    """Keep at most ``limit`` pairs, chosen by hash and left in order."""
    if limit is None or len(outcome.pairs) <= limit:
        return
    hashes = [stable_hash(f"{pair.anchor}\x1f{pair.positive}", str(seed)) for pair in outcome.pairs]
    chosen = sorted(sorted(range(len(hashes)), key=hashes.__getitem__)[:limit])
    outcome.dropped["max_pairs_per_task"] += len(outcome.pairs) - limit
    outcome.pairs = [outcome.pairs[index] for index in chosen]


def _summary(outcome: _Outcome, spec: TaskSpec) -> dict[str, Any]:
    """Return the report of one task."""
    pairs = outcome.pairs
    return {
        "type": spec.type,
        "pairs": len(pairs),
        "dropped": dict(outcome.dropped),
        "mean_anchor_characters": _mean(len(pair.anchor) for pair in pairs),
        "mean_positive_characters": _mean(len(pair.positive) for pair in pairs),
        "with_negatives": sum(bool(pair.negatives) for pair in pairs),
        "labels": len({pair.label for pair in pairs}) if spec.type in LABEL_TYPES else 0,
        **outcome.notes,
    }


def _mean(values: Iterable[int]) -> float:
    items = list(values)
    return round(sum(items) / len(items), 1) if items else 0.0


def _pair_frame(pairs: list[tuple[str, Pair]]) -> pd.DataFrame:
    """Return the pair table of the contract."""
    frame = pd.DataFrame(
        {
            "pair_id": range(len(pairs)),
            "task": [task for task, _ in pairs],
            "anchor": [pair.anchor for _, pair in pairs],
            "positive": [pair.positive for _, pair in pairs],
            "negatives": [list(pair.negatives) for _, pair in pairs],
            "label": [pair.label for _, pair in pairs],
            "origin": [pair.origin for _, pair in pairs],
        }
    )
    return frame.astype(PAIR_COLUMNS)
