"""Local evaluation tasks on mteb's own task classes.

mteb decides how a task is scored; this module only hands it data that are already in memory, fixes
what mteb leaves to chance, and keeps the outcome of every row so that it can be resampled. Where
mteb spends more time on its data sets than on the score, the loop is written on arrays instead; the
tests compare every task with plain mteb.
"""

from __future__ import annotations

import logging
import random
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import datasets
import numpy as np
import pandas as pd
import torch
from datasets import Dataset, DatasetDict
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.clustering import AbsTaskClustering
from mteb.abstasks.pair_classification import AbsTaskPairClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining
from sklearn.base import clone
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import f1_score
from threadpoolctl import ThreadpoolController

from domain_embeddings.core.encoders.prompts import Role
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation.encoder import BankEncoder
from domain_embeddings.core.evaluation.metrics import metric_name
from domain_embeddings.core.evaluation.resampling import (
    Statistic,
    average_precision_statistic,
    mean_statistic,
    spearman_statistic,
)

if TYPE_CHECKING:
    from domain_embeddings.parameters import EvaluationParameters

logger = logging.getLogger(__name__)

TRAIN = "train"
_TWO = 2


@dataclass(frozen=True)
class TaskOptions:
    """Settings of the probes (docs/method.md, section 7 names the published protocol).

    Args:
        samples_per_label: Training texts per label of one classification probe.
        classification_experiments: Number of classification probes.
        clustering_documents: Largest number of documents drawn for one k-means run.
        clustering_experiments: Number of k-means runs.
    """

    samples_per_label: int = 8
    classification_experiments: int = 10
    clustering_documents: int = 1_024
    clustering_experiments: int = 10


@dataclass(frozen=True)
class TaskResult:
    """What one encoder scored on one task.

    Args:
        values: Scores by MLflow-safe metric name; the main one first.
        statistics: How to score resamples, for the metrics that can be resampled; always has main.
        main: Name of the main metric.
        units: Number of units that are resampled.
    """

    values: dict[str, float]
    statistics: dict[str, Statistic]
    main: str
    units: int


def task_options(parameters: EvaluationParameters) -> TaskOptions:
    """Return the settings of the probes that the section ``evaluation`` asks for."""
    return TaskOptions(
        samples_per_label=parameters.classification.samples_per_label,
        classification_experiments=parameters.classification.experiments,
        clustering_documents=parameters.clustering.documents,
        clustering_experiments=parameters.clustering.experiments,
    )


class LocalTask(AbsTask):
    """A task whose data are in memory.

    Args:
        spec: Task specification.
        rows: Its records of the evaluated split and, for a probe, of the split ``train``.
        split: The evaluated split.
        seed: Seed of all that the task draws.
        options: Settings of the probes.
    """

    mteb_type: ClassVar[Any]
    # Our metric name -> mteb's; the first is the main one.
    reported: ClassVar[Mapping[str, str]]

    def __init__(
        self,
        spec: Mapping[str, Any],
        rows: pd.DataFrame,
        split: str,
        *,
        seed: int,
        options: TaskOptions,
    ) -> None:
        """Prepare the data; nothing is loaded later."""
        self.spec = dict(spec)
        self.split = split
        self.options = options
        main = next(iter(self.reported.values()))
        self.metadata = _metadata(self.spec, split, self.mteb_type, main)
        with preserved_random_state():
            super().__init__(seed=seed)
        self.rows = rows[rows["split"] == split].reset_index(drop=True)
        self.train_rows = rows[rows["split"] == TRAIN].reset_index(drop=True)
        self.check()
        self.dataset = cast("Any", self.make_dataset())
        self.data_loaded = True
        self._captured: Any = None

    @property
    def name(self) -> str:
        """Name of the task."""
        return str(self.spec["name"])

    @property
    def type(self) -> str:
        """Type of the task, in this project's spelling."""
        return str(self.spec["type"])

    @property
    def general(self) -> bool:
        """Whether it is a general task, which no mean over the domain tasks counts."""
        return bool(self.spec.get("general", False))

    @property
    def count(self) -> int:
        """Number of evaluated rows."""
        return len(self.rows)

    @property
    def units(self) -> int:
        """Number of units that the bootstrap resamples."""
        return self.count

    def load_data(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the data are in memory, so no hub is ever asked."""

    def check(self) -> None:
        """Refuse data that cannot be scored; the message names the task and the reason."""
        if self.rows.empty:
            self.refuse(f"has no rows in the split '{self.split}'")

    def refuse(self, reason: str) -> None:
        """Raise a data error about this task."""
        first = self.rows["origin"].iloc[0] if len(self.rows) and "origin" in self.rows else None
        where = f" (first row: {first})" if first else ""
        msg = f"Task '{self.name}' ({self.type}) {reason}{where}"
        raise DataError(msg)

    @abstractmethod
    def make_dataset(self) -> Any:
        """Build what mteb expects in ``self.dataset``."""

    @abstractmethod
    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield every text that an evaluation asks the encoder for, with its role."""

    @abstractmethod
    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return the resampling statistics of the last evaluation by metric name."""

    def run(self, encoder: BankEncoder) -> TaskResult:
        """Score an encoder; equal encoders score equally, however often and in whatever order.

        Args:
            encoder: Embeddings of the task's texts.

        Returns:
            The scores and what is needed to resample them.
        """
        self.rng_state, self.np_rng = random.Random(self.seed), np.random.default_rng(self.seed)  # noqa: S311
        self._captured = None
        with preserved_random_state(), _quiet(), one_thread():
            scores = self.evaluate(
                encoder,
                split=self.split,
                encode_kwargs={"batch_size": 1_024, "show_progress_bar": False},
                # Only switches the capturing on; nothing is written.
                prediction_folder=Path("not-written"),
            )["default"]
        values = {metric_name(own): float(scores[theirs]) for own, theirs in self.reported.items()}
        statistics = {
            metric_name(own): statistic for own, statistic in self.statistics(scores).items()
        }
        return TaskResult(values, statistics, next(iter(values)), self.units)

    def _save_task_predictions(
        self, predictions: Any, model: Any, prediction_folder: Path, hf_split: str, hf_subset: str
    ) -> None:
        """Keep the predictions in memory, where mteb would write a file."""
        self._captured = predictions

    def _calculate_descriptive_statistics_from_split(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: mteb would write the statistics into its own installation."""
        raise NotImplementedError


class ClassificationTask(LocalTask, AbsTaskClassification):
    """Logistic regression on a few texts per label, repeated.

    A row's outcome is the share of probes that predict its label. The interval covers the choice of
    test rows; the choice of training rows is the same for every encoder, so differences are paired.
    """

    mteb_type = "Classification"
    reported: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "f1": "f1"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Give the task its own classifier: mteb's is shared by all tasks and seeded in place."""
        self.evaluator_model = clone(AbsTaskClassification.evaluator_model)
        options = kwargs["options"]
        self.samples_per_label = options.samples_per_label
        self.n_experiments = options.classification_experiments
        super().__init__(*args, **kwargs)

    def check(self) -> None:
        """Require two classes on both sides and training texts for every tested class."""
        super().check()
        _require_classes(self, self.rows["label"], self.split)
        if self.train_rows.empty:
            self.refuse("has no rows in the split 'train', which its probe is trained on")
        _require_classes(self, self.train_rows["label"], TRAIN)
        unseen = sorted(set(self.rows["label"]) - set(self.train_rows["label"]))
        if unseen:
            logger.warning(
                "Task '%s': %d labels of the split '%s' have no training row, for example '%s'; "
                "their rows count as wrong",
                *(self.name, len(unseen), self.split, unseen[0]),
            )

    def make_dataset(self) -> DatasetDict:
        """Return train and evaluated split with the columns text and label."""
        columns = {"text": "text", "label": "label"}
        train, evaluated = _columns(self.train_rows, columns), _columns(self.rows, columns)
        return DatasetDict({TRAIN: train, self.split: evaluated})

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield the evaluated texts and those training texts that some probe draws."""
        yield from (("anchor", text) for text in self.rows["text"])
        drawn = sorted({row for rows in self.probes for row in rows})
        yield from (("anchor", text) for text in self.train_rows["text"].iloc[drawn])

    @cached_property
    def probes(self) -> list[list[int]]:
        """Training rows of each probe, drawn by mteb's rule, the same for every encoder."""
        labels = self.train_rows["label"].tolist()
        order = list(range(len(labels)))
        probes = []
        for _ in range(self.n_experiments):
            # mteb seeds every shuffle alike, but shuffles the previous order.
            np.random.RandomState(self.seed).shuffle(order)
            taken: Counter[str] = Counter()
            rows = []
            for row in order:
                if taken[labels[row]] < self.samples_per_label:
                    rows.append(row)
                    taken[labels[row]] += 1
            probes.append(rows)
        return probes

    @cached_property
    def _codes(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the training and of the evaluated rows as numbers, in order of the labels."""
        train, evaluated = (rows["label"].astype(str) for rows in (self.train_rows, self.rows))
        _, codes = np.unique(np.concatenate([train, evaluated]), return_inverse=True)
        return codes[: len(train)], codes[len(train) :]

    def _evaluate_subset(self, model: Any, data_split: Any, **kwargs: Any) -> Any:
        """Train and test the probes as mteb does, on arrays: its data sets are read row by row."""
        drawn = np.unique(np.concatenate(self.probes))
        train = model.embed(self.train_rows["text"].iloc[drawn].tolist(), self.name, "anchor")
        test = model.embed(self.rows["text"].tolist(), self.name, "anchor")
        labels, truth = self._codes
        self._captured = []
        for rows in self.probes:
            self.evaluator_model.fit(train[np.searchsorted(drawn, rows)], labels[rows])
            self._captured.append(self.evaluator_model.predict(test))
        found = [
            {
                "accuracy": float(np.mean(predicted == truth)),
                "f1": float(f1_score(truth, predicted, average="macro")),
            }
            for predicted in self._captured
        ]
        return self._calculate_avg_scores(cast("Any", found))

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return the accuracy as the mean of the rows' hit rates."""
        hits = np.array(self._captured) == self._codes[1]
        return {"accuracy": mean_statistic(hits.mean(axis=0))}


class RetrievalTask(LocalTask, AbsTaskRetrieval):
    """Documents of a corpus ranked for each query by cosine similarity."""

    mteb_type = "Retrieval"
    reported: ClassVar[Mapping[str, str]] = {
        "ndcg@10": "ndcg_at_10",
        "recall@10": "recall_at_10",
        "mrr@10": "mrr_at_10",
    }
    # The largest cut-off bounds how many documents mteb keeps per query. Nothing here looks deeper
    # than 10; the margin keeps documents of equal score from dropping out at the edge.
    k_values = (1, 10, 20)

    def check(self) -> None:
        """Require a query with a relevant document."""
        super().check()
        if not self._judged().any():
            self.refuse("has no query with a relevant document (text, text2 and score > 0)")

    def _judged(self) -> pd.Series:
        return self.rows["text"].notna() & self.rows["text2"].notna() & (self.rows["score"] > 0)

    def make_dataset(self) -> Any:
        """Return corpus, queries and relevance; a record without query is a distractor."""
        rows = self.rows
        # mteb strips documents before it encodes them.
        documents = rows[rows["text2"].notna()].drop_duplicates("text2_id")
        corpus = Dataset.from_dict(
            {
                "id": [str(name) for name in documents["text2_id"]],
                "text": [str(text).strip() for text in documents["text2"]],
            }
        )
        judged = rows[self._judged()]
        asked = judged.drop_duplicates("text_id")
        queries = Dataset.from_dict(
            {"id": [str(name) for name in asked["text_id"]], "text": list(asked["text"])}
        )
        relevant: dict[str, dict[str, int]] = {}
        for query, document, score in zip(
            judged["text_id"], judged["text2_id"], judged["score"], strict=True
        ):
            relevant.setdefault(str(query), {})[str(document)] = max(1, round(score))
        self._query_ids = list(relevant)
        split = RetrievalSplitData(
            corpus=corpus,
            queries=queries,
            relevant_docs=relevant,
            top_ranked=self._candidates(),
        )
        return {"default": {self.split: split}}

    def _candidates(self) -> dict[str, list[str]] | None:
        return None

    @property
    def count(self) -> int:
        """Number of queries."""
        return len(self._query_ids)

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield queries and the documents of the corpus."""
        split = cast("Any", self.dataset)["default"][self.split]
        yield from (("anchor", text) for text in split["queries"]["text"])
        yield from (("positive", text) for text in split["corpus"]["text"])

    def task_specific_scores(
        self,
        scores: dict[str, dict[str, float]],
        qrels: Any,
        results: dict[str, dict[str, float]],
        hf_split: str,
        hf_subset: str,
    ) -> dict[str, float]:
        """Keep the scores of every query, where mteb lets a task add scores of its own."""
        self._captured = scores
        return {}

    def _save_task_predictions(self, *args: Any, **kwargs: Any) -> None:
        """Keep no rankings: the scores per query are all that is needed."""

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return nDCG@10 and recall@10 as means over queries.

        Raises:
            DataError: The mean over queries is not mteb's score, which is rounded to 5 decimals.
        """
        found = {}
        for own, theirs in (("ndcg@10", "ndcg_cut_10"), ("recall@10", "recall_10")):
            values = np.array([self._captured[query][theirs] for query in self._query_ids])
            if abs(values.mean() - scores[metric_name(own)]) > 6e-6:  # noqa: PLR2004
                self.refuse(f"was scored on other queries than its own ({own})")
            found[own] = mean_statistic(values)
        return found


class RerankingTask(RetrievalTask):
    """The candidates of each query, relevant or not, ranked by cosine similarity."""

    mteb_type = "Reranking"

    def _candidates(self) -> dict[str, list[str]] | None:
        pairs = self.rows[self.rows["text"].notna() & self.rows["text2"].notna()]
        asked = set(self._query_ids)
        candidates: dict[str, dict[str, None]] = {}
        for query, document in zip(pairs["text_id"], pairs["text2_id"], strict=True):
            if str(query) in asked:
                candidates.setdefault(str(query), {})[str(document)] = None
        return {query: list(documents) for query, documents in candidates.items()}


class PairTask(LocalTask):
    """Base of the tasks on two symmetric columns."""

    extra: ClassVar[Mapping[str, str]] = {}

    def make_dataset(self) -> DatasetDict:
        """Return the evaluated split with sentence1, sentence2 and the gold column."""
        columns = {"sentence1": "text", "sentence2": "text2", **self.extra}
        return DatasetDict({self.split: _columns(self.rows, columns)})

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
        unknown = sorted(set(self.rows["label"].astype(str)) - {"0", "1"})
        if unknown:
            self.refuse(f"has the label '{unknown[0]}'; allowed: 1 (belongs together) and 0")
        _require_classes(self, self.rows["label"], self.split)

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
        if self.rows["score"].isna().any() or self.rows["score"].nunique() < _TWO:
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


class ClusteringTask(LocalTask, AbsTaskClustering):
    """Repeated k-means on documents drawn with replacement.

    The unit of the bootstrap is the k-means run, not the document: the interval says how much the
    score depends on the documents drawn and on the start of k-means. Every encoder clusters the
    same draws, so differences are paired.
    """

    mteb_type = "Clustering"
    reported: ClassVar[Mapping[str, str]] = {"v_measure": "v_measure", "ami": "ami"}
    max_fraction_of_documents_to_embed = None
    max_document_to_embed = None
    # A sequence means that the column is called like its modality; a single name would be copied
    # row by row into a new data set for every encoder.
    input_column_name = ("text",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set the number of runs."""
        self.n_clusters = kwargs["options"].clustering_experiments
        super().__init__(*args, **kwargs)
        # mteb's default draws 16,384 documents with replacement, however few there are.
        self.max_documents_per_cluster = min(self.options.clustering_documents, self.count)

    def check(self) -> None:
        """Require two clusters."""
        super().check()
        _require_classes(self, self.rows["label"], self.split)

    def make_dataset(self) -> DatasetDict:
        """Return the evaluated split with the columns text and labels."""
        columns = {"text": "text", "labels": "label"}
        return DatasetDict({self.split: _columns(self.rows, columns)})

    def texts(self) -> Iterator[tuple[Role, str]]:
        """Yield the documents."""
        yield from (("anchor", text) for text in self.rows["text"])

    @property
    def units(self) -> int:
        """Number of k-means runs."""
        return self.options.clustering_experiments

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return V-measure and AMI as means over the k-means runs."""
        return {
            "v_measure": mean_statistic(scores["v_measures"]["Level 0"]),
            "ami": mean_statistic(scores["ami_scores"]["Level 0"]),
        }


TASK_CLASSES: dict[str, type[LocalTask]] = {
    "classification": ClassificationTask,
    "retrieval": RetrievalTask,
    "reranking": RerankingTask,
    "pair_classification": PairClassificationTask,
    "sts": STSTask,
    "clustering": ClusteringTask,
    "bitext_mining": BitextMiningTask,
}


def build_tasks(
    records: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    *,
    split: str,
    seed: int,
    options: TaskOptions | None = None,
) -> list[LocalTask]:
    """Build the tasks that the specifications ask to evaluate, in their order.

    Args:
        records: Records of all tasks (columns of ``core.tasks.records``).
        specs: Task specifications; those without the use ``evaluate`` are left out.
        split: The evaluated split.
        seed: Seed of all that the tasks draw.
        options: Settings of the probes.

    Returns:
        One task per specification that can be scored.

    Raises:
        DataError: A task cannot be scored on this split, or there is none.
    """
    tasks = []
    for spec in specs:
        if "evaluate" not in spec.get("uses", ("train", "evaluate")):
            continue
        kind = TASK_CLASSES.get(spec["type"])
        if kind is None:
            logger.warning(
                "Task '%s' is not scored: the type '%s' has no score (types that have one: %s)",
                *(spec["name"], spec["type"], ", ".join(TASK_CLASSES)),
            )
            continue
        rows = records[records["task"] == spec["name"]]
        tasks.append(kind(spec, rows, split, seed=seed, options=options or TaskOptions()))
    if not tasks:
        msg = (
            "No task can be evaluated: none has the use 'evaluate' and one of the types "
            f"{', '.join(TASK_CLASSES)}"
        )
        raise DataError(msg)
    return tasks


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Undo what mteb does to the global random generators when a task or evaluator is made."""
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def one_thread() -> AbstractContextManager[Any]:
    """Compute with one thread.

    The problems here are small: more threads would spend their time waiting for each other, which
    on a busy machine takes tens of times longer.
    """
    return _threads().limit(limits=1)


@cache
def _threads() -> ThreadpoolController:
    """Find the thread pools of the process once; that takes longer than some evaluations."""
    return ThreadpoolController()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars and messages of mteb and datasets during one evaluation."""
    shown = not datasets.are_progress_bars_disabled()
    messages = logging.getLogger("mteb")
    level = messages.level
    datasets.disable_progress_bars()
    messages.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # A class that no probe predicts scores 0: expected at small widths, and no news.
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            yield
    finally:
        messages.setLevel(level)
        if shown:
            datasets.enable_progress_bars()


def _metadata(spec: Mapping[str, Any], split: str, mteb_type: Any, main: str) -> TaskMetadata:
    """Describe a local task to mteb; the path names no data set of any hub."""
    return TaskMetadata(
        name=str(spec["name"]),
        description=str(spec.get("description") or f"Local task '{spec['name']}'"),
        dataset={"path": "local", "revision": "local"},
        type=mteb_type,
        category="t2t",
        eval_splits=[split],
        eval_langs=["eng-Latn"],
        main_score=main,
    )


def _columns(rows: pd.DataFrame, columns: Mapping[str, str]) -> Dataset:
    """Copy columns of a frame into an in-memory data set, renamed."""
    return Dataset.from_dict({new: rows[old].tolist() for new, old in columns.items()})


def _require_classes(task: LocalTask, labels: Iterable[Any], split: str) -> None:
    """Refuse fewer than two classes."""
    classes = set(labels)
    if len(classes) < _TWO:
        task.refuse(f"has only the label {classes or '{}'} in the split '{split}'; it needs two")
