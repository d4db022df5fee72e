"""Probes on frozen embeddings: one label per text, or several."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from datasets import Dataset, DatasetDict
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.multilabel_classification import AbsTaskMultilabelClassification
from sklearn.base import clone
from sklearn.metrics import f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from domain_embeddings.core.encoders.prompts import Role
from domain_embeddings.core.evaluation.resampling import Statistic, mean_statistic
from domain_embeddings.core.evaluation.tasks.base import (
    TRAIN,
    LocalTask,
    columns_of,
    require_classes,
    require_labels,
)
from domain_embeddings.core.tasks.labels import split_labels

logger = logging.getLogger(__name__)


class ClassificationTask(LocalTask, AbsTaskClassification):
    """Logistic regression on a few texts per label, repeated.

    A row's outcome is the share of probes that predict its label. The interval covers the choice of
    test rows; the choice of training rows is the same for every encoder, so differences are paired.
    """

    mteb_type = "Classification"
    reported: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "f1": "f1"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Give the task its own classifier: mteb's is shared by all tasks and seeded in place."""
        self.evaluator_model = clone(type(self).evaluator_model)
        options = kwargs["options"]
        self.samples_per_label = options.samples_per_label
        self.n_experiments = options.classification_experiments
        super().__init__(*args, **kwargs)

    def check(self) -> None:
        """Require two classes on both sides and training texts for every tested class."""
        super().check()
        if self.train_rows.empty:
            self.refuse("has no rows in the split 'train', which its probe is trained on")
        require_labels(self, self.rows["label"], self.split)
        require_labels(self, self.train_rows["label"], TRAIN)
        self.check_classes(self.rows["label"], self.train_rows["label"])

    def check_classes(self, tested: Iterable[str], trained: Iterable[str]) -> None:
        """Require two classes on both sides, and say which tested ones cannot be learnt."""
        tested, trained = set(tested), set(trained)
        require_classes(self, tested, self.split)
        require_classes(self, trained, TRAIN)
        unseen = sorted(tested - trained)
        if unseen:
            logger.warning(
                "Task '%s': %d labels of the split '%s' have no training row, for example '%s'; "
                "their rows count as wrong",
                *(self.name, len(unseen), self.split, unseen[0]),
            )

    def make_dataset(self) -> DatasetDict:
        """Return train and evaluated split with the columns text and label."""
        columns = {"text": "text", "label": "label"}
        train, evaluated = columns_of(self.train_rows, columns), columns_of(self.rows, columns)
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
        train, test = self._probe_vectors(model)
        labels, truth = self._codes
        self._captured = []
        for own, rows in zip(train, self.probes, strict=True):
            self.evaluator_model.fit(own, labels[rows])
            self._captured.append(self.evaluator_model.predict(test))
        found = [
            {
                "accuracy": float(np.mean(predicted == truth)),
                "f1": float(f1_score(truth, predicted, average="macro")),
            }
            for predicted in self._captured
        ]
        return self._calculate_avg_scores(cast("Any", found))

    def _probe_vectors(self, model: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """Embed each text once: the training texts of every probe, and the evaluated ones."""
        drawn = np.unique(np.concatenate(self.probes))
        train = model.embed(self.train_rows["text"].iloc[drawn].tolist(), self.name, "anchor")
        test = model.embed(self.rows["text"].tolist(), self.name, "anchor")
        return [train[np.searchsorted(drawn, rows)] for rows in self.probes], test

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return the accuracy as the mean of the rows' hit rates."""
        hits = np.array(self._captured) == self._codes[1]
        return {"accuracy": mean_statistic(hits.mean(axis=0))}


class MultilabelTask(ClassificationTask, AbsTaskMultilabelClassification):
    """Five nearest neighbours among a few texts per label, repeated; texts have several labels.

    The main metric is mteb's ``accuracy``: the share of texts whose whole set of labels is
    predicted. ``hamming`` is the shared part of true and predicted labels, ``lrap`` the average
    precision of the predicted labels, both by text; ``f1`` is the mean over labels.
    """

    mteb_type = "MultilabelClassification"
    reported: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy",
        "f1": "f1",
        "lrap": "lrap",
        "hamming": "hamming",
    }
    # mteb would cut large test splits to a sample.
    max_eval_samples = None

    def check_classes(self, tested: Iterable[str], trained: Iterable[str]) -> None:
        """Require two labels on both sides, and as many probe texts as there are neighbours."""
        self._labels = [split_labels(text) for text in tested]
        self._train_labels = [split_labels(text) for text in trained]
        super().check_classes(*(_flat(rows) for rows in (self._labels, self._train_labels)))
        fewest = min(map(len, self.probes))
        needed = cast("Any", self.evaluator_model).n_neighbors
        if fewest < needed:
            self.refuse(
                f"has {fewest} training rows for a probe of {needed} nearest neighbours: give it "
                "more, or raise evaluation.classification.samples_per_label"
            )

    def make_dataset(self) -> DatasetDict:
        """Return train and evaluated split with a text and a list of labels."""
        sides = {
            TRAIN: (self.train_rows, self._train_labels),
            self.split: (self.rows, self._labels),
        }
        return DatasetDict(
            {
                split: Dataset.from_dict({"text": rows["text"].tolist(), "label": labels})
                for split, (rows, labels) in sides.items()
            }
        )

    @cached_property
    def probes(self) -> list[list[int]]:
        """Training rows of each probe, drawn by mteb's rule, the same for every encoder."""
        self.np_rng = np.random.default_rng(self.seed)
        return [
            self._undersample_data_indices(cast("Any", self._train_labels), self.samples_per_label)[
                0
            ]
            for _ in range(self.n_experiments)
        ]

    @cached_property
    def _indicators(self) -> tuple[np.ndarray, np.ndarray]:
        """Which labels the training and the evaluated rows have: (n, labels), 0 or 1.

        As in mteb the labels are those of the evaluated rows.
        """
        binarizer = MultiLabelBinarizer().fit(self._labels)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="unknown class")
            return binarizer.transform(self._train_labels), binarizer.transform(self._labels)

    def _evaluate_subset(self, model: Any, data_split: Any, **kwargs: Any) -> Any:
        """Train and test the probes as mteb does, on arrays."""
        train, test = self._probe_vectors(model)
        labels, truth = self._indicators
        found: list[Any] = []
        self._captured = []
        for own, rows in zip(train, self.probes, strict=True):
            probe = clone(self.evaluator_model)
            probe.fit(own, labels[rows])
            predicted = probe.predict(test)
            self._captured.append(predicted)
            found.append(self._calculate_scores(truth, predicted, test, probe))
        return {name: float(np.mean([scores[name] for scores in found])) for name in found[0]}

    def statistics(self, scores: Mapping[str, Any]) -> dict[str, Statistic]:
        """Return the metrics that are means over texts."""
        truth = self._indicators[1]
        rows = [multilabel_outcomes(truth, predicted) for predicted in self._captured]
        return {name: mean_statistic(np.mean([o[name] for o in rows], axis=0)) for name in rows[0]}


def multilabel_outcomes(truth: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Score the predicted labels of each text.

    Args:
        truth: True labels, shape (n, labels), 0 or 1.
        predicted: Predicted labels, the same shape.

    Returns:
        Outcomes of shape (n,) whose means are mteb's metrics of the same names. ``lrap``: of the t
        true labels h are predicted, among p predicted ones; each of those ranks p-th and has the
        precision h / p, each of the others ranks last and has t / labels.
    """
    truth, predicted = truth.astype(bool), predicted.astype(bool)
    hits = (truth & predicted).sum(axis=1)
    true, said, either = truth.sum(axis=1), predicted.sum(axis=1), (truth | predicted).sum(axis=1)
    labels = truth.shape[1]
    precision = hits / np.maximum(said, 1)
    lrap = (hits * precision + (true - hits) * true / labels) / np.maximum(true, 1)
    return {
        "accuracy": (truth == predicted).all(axis=1).astype(np.float64),
        # No order to get wrong: all labels or none.
        "lrap": np.where((true == 0) | (true == labels), 1.0, lrap),
        "hamming": np.where(either == 0, 1.0, hits / np.maximum(either, 1)),
    }


def _flat(rows: Iterable[Iterable[str]]) -> list[str]:
    return [label for labels in rows for label in labels]
