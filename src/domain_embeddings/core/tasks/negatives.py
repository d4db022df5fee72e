"""Hard negatives: texts of the same task that the reference model takes for the positive.

sentence-transformers' own miner ranks, applies margins and ranges, and samples. It is given stored
relation vectors in place of a model, so nothing is encoded again and every text is seen with the
prompt it is trained with. What must never be a negative is hidden from it before it ranks.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle, require_same
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.tasks.normalise import comparison_key

if TYPE_CHECKING:
    from torch import Tensor

    from domain_embeddings.parameters import NegativesParameters

NEGATIVE_COLUMNS = {
    "pair_id": "int64",
    "rank": "int64",
    "negative": "str",
    "score": "float64",
}
# Similarities that are in memory at once, 4 bytes each.
_SCORES = 1 << 25

Report = dict[str, Any]


def mine_negatives(
    pairs: pd.DataFrame,
    relation_vectors: Bundle,
    task_specs: Sequence[Mapping[str, Any]],
    parameters: NegativesParameters,
    seed: int,
) -> tuple[pd.DataFrame, Report]:
    """Mine hard negatives for every training pair.

    Args:
        pairs: Training pairs, row k with pair_id k.
        relation_vectors: Reference relation vectors of exactly these pairs.
        task_specs: Task specifications, for the prompts.
        parameters: Section ``negatives``; ``per_pair`` 0 mines nothing and reads nothing.
        seed: Seed of random sampling.

    Returns:
        A table of ``pair_id``, ``rank`` (from 1, most similar first), ``negative`` (without
        prompt) and ``score`` (cosine similarity to the anchor); and a report that counts, per task,
        pairs with fewer negatives than wanted and candidates that were left out, by reason.

    Raises:
        ProvenanceError: If the vectors belong to another pair table.

    Source:
        docs/method.md, section 3d.
    """
    from domain_embeddings.core.encoders.relations import pair_table_hash, pair_texts

    report: Report = {"per_pair": parameters.per_pair, "seed": seed, "tasks": {}}
    frames = []
    if parameters.per_pair:
        texts = pair_texts(pairs, task_specs, relation_vectors.header["prompts"])
        table = pair_table_hash(pairs["task"], *texts)
        require_same({"pair_table_hash": table}, relation_vectors.header, ("pair_table_hash",))
        report |= {name: relation_vectors.header[name] for name in ("pair_table_hash", "model")}
        partners = _partners(pairs)
        vectors = relation_vectors["vectors"]
        for name, rows in pairs.groupby("task", sort=True):
            stored = _StoredEncoder(rows, vectors, partners, parameters)
            mined = _mine_task(rows, stored, parameters, seed)
            frames.append(mined)
            report["tasks"][str(name)] = _summary(rows, mined, stored, parameters.per_pair)
    found = pd.concat(frames) if frames else pd.DataFrame(columns=list(NEGATIVE_COLUMNS))
    report["total"] = len(found)
    ordered = found.sort_values(["pair_id", "rank"], kind="stable", ignore_index=True)
    return ordered.astype(NEGATIVE_COLUMNS), report


def add_negatives(
    pairs: pd.DataFrame, mined: pd.DataFrame, report: Report, header: Mapping[str, Any]
) -> pd.DataFrame:
    """Put mined negatives behind the negatives that pairs already have.

    Args:
        pairs: Training pairs.
        mined: Table of `mine_negatives`.
        report: Report of `mine_negatives`.
        header: Header of the relation vectors of these pairs.

    Returns:
        The pairs with a longer column ``negatives``; anchors and positives stay as they are, and
        with them every vector and hash of the pair table.

    Raises:
        ProvenanceError: If the negatives were mined for another pair table.
    """
    if mined.empty:
        return pairs
    require_same(report, header, ("pair_table_hash",))
    by_pair = mined.sort_values(["pair_id", "rank"]).groupby("pair_id")["negative"].agg(list)
    joined = [
        list(dict.fromkeys([*own, *by_pair.get(pair, [])]))
        for pair, own in zip(pairs["pair_id"], pairs["negatives"], strict=True)
    ]
    return pairs.assign(negatives=pd.Series(joined, index=pairs.index, dtype=object))


def _partners(pairs: pd.DataFrame) -> dict[str, set[str]]:
    """Return, by comparison key of a text, the keys of all texts it is known to belong with.

    A pair of any task counts, and from both of its sides.
    """
    partners: dict[str, set[str]] = defaultdict(set)
    for anchor, positive in zip(pairs["anchor"], pairs["positive"], strict=True):
        sides = comparison_key(anchor), comparison_key(positive)
        partners[sides[0]].add(sides[1])
        partners[sides[1]].add(sides[0])
    return partners


class _StoredEncoder:
    """What the miner needs of a model, answered from stored vectors of one task.

    An "embedding" is the place of a text in the lists below. The similarity looks its vector up,
    and is -inf for candidates that may not be negatives, so that they take no rank from others.

    Args:
        rows: Pairs of the task.
        vectors: Relation vectors [anchor ; positive] of all pairs, row k for pair k.
        partners: Known partners of texts, see `_partners`.
        parameters: Section ``negatives``.
    """

    device = "cpu"

    def __init__(
        self,
        rows: pd.DataFrame,
        vectors: np.ndarray,
        partners: Mapping[str, set[str]],
        parameters: NegativesParameters,
    ) -> None:
        self.parameters = parameters
        self.anchors = rows.drop_duplicates("anchor")
        self.candidates = rows.drop_duplicates("positive")
        self.dropped: Counter[str] = Counter()
        width = vectors.shape[1] // 2
        # Normalised anew: stored halves may be rounded to float16.
        self._queries = prefix(vectors[self.anchors["pair_id"].to_numpy()][:, :width], width)
        self._documents = prefix(vectors[self.candidates["pair_id"].to_numpy()][:, width:], width)
        self._query_place = {text: i for i, text in enumerate(self.anchors["anchor"])}
        self._document_place = {text: i for i, text in enumerate(self.candidates["positive"])}
        self._partners = partners
        self._index(rows)

    def _index(self, rows: pd.DataFrame) -> None:
        """Collect by which candidates a key or label is carried, and what each anchor carries."""
        self._by_key: dict[str, set[int]] = defaultdict(set)
        for text, place in self._document_place.items():
            self._by_key[comparison_key(text)].add(place)
        self._by_label: dict[str, set[int]] = defaultdict(set)
        self._labels: dict[str, set[str]] = defaultdict(set)
        self._positives: dict[str, set[int]] = defaultdict(set)
        self._own: dict[str, set[int]] = defaultdict(set)
        columns = (rows[name] for name in ("anchor", "positive", "label", "negatives"))
        for anchor, positive, label, negatives in zip(*columns, strict=True):
            self._positives[anchor].add(self._document_place[positive])
            for text in negatives:
                self._own[anchor] |= self._by_key.get(comparison_key(text), set())
            if pd.isna(label):
                continue
            self._labels[anchor].add(label)
            self._by_label[label].add(self._document_place[positive])
            if anchor in self._document_place:
                self._by_label[label].add(self._document_place[anchor])

    def encode_query(self, texts: Sequence[str], **_options: Any) -> np.ndarray:
        """Return the places of anchors, shape (n, 1)."""
        return np.array([[self._query_place[text]] for text in texts])

    def encode_document(self, texts: Sequence[str], **_options: Any) -> np.ndarray:
        """Return the places of candidates, shape (n, 1)."""
        return np.array([[self._document_place[text]] for text in texts])

    def similarity_pairwise(self, queries: Any, documents: Any) -> Tensor:
        """Return the cosine similarity of anchors and candidates, one by one."""
        import torch

        left = self._queries[np.asarray(queries)[:, 0]]
        right = self._documents[np.asarray(documents)[:, 0]]
        return torch.from_numpy(np.einsum("nd,nd->n", left, right))

    def similarity(self, queries: Any, documents: Any) -> Tensor:
        """Return the cosine similarity of anchors and candidates, -inf where forbidden."""
        import torch

        places, order = np.asarray(queries)[:, 0], np.asarray(documents)[:, 0]
        scores = self._queries[places] @ self._documents.T
        texts = self.anchors["anchor"].iloc[places]
        for row, text in zip(scores, texts, strict=True):
            threshold = self._threshold(row[list(self._positives[text])].min())
            taken: set[int] = set()
            for reason, columns in self._forbidden(text):
                self.dropped[reason] += len(columns - taken)
                taken |= columns
            row[list(taken)] = -np.inf
            close = row > threshold
            self.dropped["margin"] += int(close.sum())
            if self.parameters.max_score is not None:
                above = ~close & (row > self.parameters.max_score)
                self.dropped["max_score"] += int(above.sum())
        return torch.from_numpy(scores[:, order])

    def _forbidden(self, anchor: str) -> list[tuple[str, set[int]]]:
        """Return the candidates that are no negatives of an anchor, by reason."""
        key = comparison_key(anchor)
        nothing: set[int] = set()
        partners = [self._by_key.get(other, nothing) for other in self._partners.get(key, ())]
        labelled = [self._by_label[label] for label in self._labels.get(anchor, ())]
        return [
            ("known positive", nothing.union(*partners)),
            ("same text", self._by_key.get(key, nothing)),
            ("same label", nothing.union(*labelled)),
            ("already a negative", self._own.get(anchor, nothing)),
        ]

    def _threshold(self, positive: float) -> float:
        """Return the similarity above which a candidate is within the margin, as the miner does."""
        margin = self.parameters.margin
        limits = [np.inf]
        if margin.absolute is not None:
            limits.append(positive - margin.absolute)
        if margin.relative is not None:
            limits.append(positive - abs(positive) * margin.relative)
        return float(min(limits))


def _mine_task(
    rows: pd.DataFrame, stored: _StoredEncoder, parameters: NegativesParameters, seed: int
) -> pd.DataFrame:
    """Let the miner work on the pairs of one task."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    task = str(rows["task"].iloc[0])
    state = random.getstate()
    # The miner draws from the global generator.
    random.seed(zlib.crc32(f"{seed}:{task}".encode()))
    try:
        mined: Any = mine_hard_negatives(
            Dataset.from_dict({name: rows[name].tolist() for name in ("anchor", "positive")}),
            stored,  # type: ignore[arg-type]
            range_min=parameters.range_min,
            range_max=parameters.range_max,
            max_score=parameters.max_score,
            absolute_margin=parameters.margin.absolute,
            relative_margin=parameters.margin.relative,
            num_negatives=parameters.per_pair,
            sampling_strategy=parameters.sampling,
            output_scores=True,
            faiss_batch_size=max(1, _SCORES // len(stored.candidates)),
            verbose=False,
        )
    finally:
        random.setstate(state)
    found = mined.to_pandas()
    found["score"] = [scores[1] for scores in found["scores"]]
    found["rank"] = found.groupby(["anchor", "positive"]).cumcount() + 1
    named = rows[["pair_id", "anchor", "positive"]].merge(found, on=["anchor", "positive"])
    return named[list(NEGATIVE_COLUMNS)]


def _summary(
    rows: pd.DataFrame, mined: pd.DataFrame, stored: _StoredEncoder, wanted: int
) -> Report:
    """Return the report of one task."""
    counts = mined["pair_id"].value_counts()
    full = int((counts >= wanted).sum())
    return {
        "pairs": len(rows),
        "anchors": len(stored.anchors),
        "candidates": len(stored.candidates),
        "mined": len(mined),
        "pairs_with_fewer": len(rows) - full,
        "pairs_without": len(rows) - len(counts),
        # Over all pairs of a distinct anchor and a candidate.
        "dropped": {reason: count for reason, count in stored.dropped.items() if count},
        "mean_score": float(mined["score"].mean()) if len(mined) else None,
    }
