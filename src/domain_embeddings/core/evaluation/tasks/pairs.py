"""Tasks on pairs of texts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining
from mteb.abstasks.text.summarization import AbsTaskSummarization
from scipy.stats import pearsonr, spearmanr

from domain_embeddings.core.encoders.prompts import Role
from domain_embeddings.core.evaluation.resampling import (
    Statistic,
    average_precision_statistic,
    mean_statistic,
    spearman_statistic,
)
from domain_embeddings.core.evaluation.tasks.base import (
    TWO,
    LocalTask,
    columns_of,
    require_classes,
    require_labels,
)

logger = logging.getLogger(__name__)


class PairTask(LocalTask):
    """Base of the tasks on two symmetric columns."""

    extra: ClassVar[Mapping[str, str]] = {}

    def make_dataset(self) -> DatasetDict:
        """Return the evaluated split with sentence1, sentence2 and the gold column."""
        columns = {"sentence1": "text", "sentence2": "text2", **self.extra}
        return DatasetDict({self.split: columns_of(self.rows, columns)})

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield both sides."""
        yield from (("anchor", text) for text in self.rows["text"])
        yield from (("anchor", text) for text in self.rows["text2"])


class PairClassificationTask(PairTask, AbsTaskPairClassification):
    """Pairs that belong together ranked above pairs that do not.

    The main metric is mteb's ``cosine_ap``: the average precision of the cosine similarity, which
    a vector index serves. mteb's own main metric, ``max_ap``, is reported beside it as ``ap``: the
    best average precision of five similarity measures, among them Manhattan distance, which no
    cosine index serves and which depends on the basis. f1 and accuracy are such maxima, too.
    """

    mteb_type = "PairClassification"
    reported: ClassVar[Mapping[str, str]] = {
        "cosine_ap": "cosine_ap",
        "ap": "max_ap",
        "f1": "max_f1",
        "accuracy": "max_accuracy",
    }
    extra: ClassVar[Mapping[str, str]] = {"labels": "label"}

    def check(self) -> None:
        """Require pairs of both kinds, labelled 1 and 0."""
        super().check()
        require_labels(self, self.rows["label"], self.split)
        unknown = sorted(set(self.rows["label"].astype(str)) - {"0", "1"})
        if unknown:
            self.refuse(f"has the label '{unknown[0]}'; allowed: 1 (belongs together) and 0")
        require_classes(self, self.rows["label"], self.split)

    def make_dataset(self) -> DatasetDict:
        """Return the evaluated split with integer labels."""
        self.rows["label"] = self.rows["label"].astype(int)
        return super().make_dataset()

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return the average precision of every resample, maximised as mteb does."""
        similar = ("similarity_scores", "cosine_scores", "dot_scores")
        distant = ("manhattan_distances", "euclidean_distances")
        measures = [np.asarray(self._captured[name]) for name in similar]
        measures += [-np.asarray(self._captured[name]) for name in distant]
        labels = self.rows["label"]
        return {
            "cosine_ap": average_precision_statistic([self._captured["cosine_scores"]], labels),
            "ap": average_precision_statistic(measures, labels),
        }


class STSTask(PairTask, AbsTaskSTS):
    """Similarities correlated with gold scores."""

    mteb_type = "STS"
    reported: ClassVar[Mapping[str, str]] = {
        "spearman": "cosine_spearman",
        "pearson": "cosine_pearson",
    }
    extra: ClassVar[Mapping[str, str]] = {"score": "score"}

    def check(self) -> None:
        """Require gold scores that vary."""
        super().check()
        if self.rows["score"].isna().any() or self.rows["score"].nunique() < TWO:
            self.refuse("needs gold scores that vary, without gaps")

    def make_dataset(self) -> DatasetDict:
        """Return the evaluated split; correlation is blind to the scale of the gold scores."""
        self.min_score = cast("int", float(self.rows["score"].min()))
        self.max_score = cast("int", float(self.rows["score"].max()))
        return super().make_dataset()

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return Spearman's correlation of the cosine similarity."""
        return {"spearman": spearman_statistic(self.rows["score"], self._captured["cosine_scores"])}


class BitextMiningTask(PairTask, AbsTaskBitextMining):
    """The second side of each pair found among all second sides.

    The main metric is the share of pairs found, which has an outcome per row; mteb's weighted F1 is
    reported beside it.
    """

    mteb_type = "BitextMining"
    reported: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "f1": "f1"}

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return the accuracy as the mean of the rows' hits."""
        found = [best["corpus_id"] for best in self._captured["sentence1-sentence2"]]
        return {"accuracy": mean_statistic(np.array(found) == np.arange(len(found)))}


@dataclass(frozen=True)
class _Rated:
    """A text whose summaries are ranked.

    Args:
        text: The text.
        references: What its summaries are compared with: summaries without a score, or the text.
        role: Side of the task that the references belong to.
        summaries: Summaries with a score.
        scores: Their scores.
    """

    text: str
    references: list[str]
    role: Role
    summaries: list[str]
    scores: list[float]


class SummarizationTask(LocalTask, AbsTaskSummarization):
    """The summaries of each text ranked by their similarity to its reference summaries.

    A summary without a score is a reference; where a text has none, it is its own reference. The
    correlation is taken within each text, and the mean is over texts. A text whose summaries all
    have one score is left out, as in mteb.
    """

    mteb_type = "Summarization"
    reported: ClassVar[Mapping[str, str]] = {
        "spearman": "cosine_spearman",
        "pearson": "cosine_pearson",
    }

    def check(self) -> None:
        """Require a text with summaries of different scores."""
        super().check()
        texts = [_rated(text, rows) for text, rows in self.rows.groupby("text", sort=False)]
        self._texts = [text for text in texts if len(set(text.scores)) >= TWO]
        if not self._texts:
            self.refuse("has no text with summaries of different scores")
        if len(self._texts) < len(texts):
            logger.warning(
                "Task '%s': %d of %d texts have no summaries of different scores and are left out",
                *(self.name, len(texts) - len(self._texts), len(texts)),
            )

    def make_dataset(self) -> DatasetDict:
        """Return the texts with their summaries; correlation is blind to the scale of scores."""
        scores = [score for text in self._texts for score in text.scores]
        self.min_score, self.max_score = cast("Any", (min(scores), max(scores)))
        columns = {
            "text": [text.text for text in self._texts],
            "human_summaries": [text.references for text in self._texts],
            "machine_summaries": [text.summaries for text in self._texts],
            "relevance": [text.scores for text in self._texts],
        }
        return DatasetDict({self.split: Dataset.from_dict(columns)})

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self._texts)

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield references and summaries."""
        for text in self._texts:
            yield from ((text.role, reference) for reference in text.references)
            yield from (("positive", summary) for summary in text.summaries)

    def _evaluate_subset(self, model: Any, data_split: Any, **kwargs: Any) -> Any:
        """Rank as mteb does, on arrays: it compares one pair of vectors at a time."""
        found = np.full((len(self._texts), 2), np.nan)
        for row, text in enumerate(self._texts):
            references = model.embed(text.references, self.name, text.role)
            summaries = model.embed(text.summaries, self.name, "positive")
            similar = (summaries @ references.T).max(axis=1)
            if len(set(similar.tolist())) >= TWO:
                found[row] = [
                    correlate(text.scores, similar).statistic for correlate in (spearmanr, pearsonr)
                ]
        self._captured = found
        # Without a single text that the similarities put in an order, there is no score.
        ranked = found[~np.isnan(found[:, 0])]
        spearman, pearson = ranked.mean(axis=0) if len(ranked) else (np.nan, np.nan)
        return {"cosine_spearman": float(spearman), "cosine_pearson": float(pearson)}

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return both correlations as means over texts."""
        spearman, pearson = self._captured.T
        return {"spearman": mean_statistic(spearman), "pearson": mean_statistic(pearson)}


def _rated(text: Any, rows: Any) -> _Rated:
    """Collect the summaries of a text."""
    rated = rows[rows["score"].notna()]
    references = rows.loc[rows["score"].isna(), "text2"].tolist()
    return _Rated(
        str(text),
        references or [str(text)],
        "positive" if references else "anchor",
        rated["text2"].tolist(),
        rated["score"].tolist(),
    )
