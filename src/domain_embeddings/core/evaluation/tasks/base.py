"""What all local tasks share.

mteb decides how a task is scored; these modules only hand it data that are already in memory, fix
what mteb leaves to chance, and keep the outcome of every row so that it can be resampled. Where
mteb spends more time on its data sets than on the score, the loop is written on arrays instead; the
tests compare every task with plain mteb.
"""

from __future__ import annotations

import hashlib
import logging
import math
import random
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import datasets
import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from mteb.abstasks.abstask import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata
from scipy.stats import ConstantInputWarning
from sklearn.exceptions import UndefinedMetricWarning

from domain_embeddings.core.encoders.prompts import Role
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation.encoder import BankEncoder
from domain_embeddings.core.evaluation.metrics import metric_name
from domain_embeddings.core.evaluation.resampling import Statistic, mean_statistic
from domain_embeddings.core.threads import one_thread

logger = logging.getLogger(__name__)

TRAIN = "train"
TWO = 2


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


# Columns of a record that say what a row is; the others say where it is from.
_CONTENT = ("text", "text2", "label", "score")


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
    def digest(self) -> str:
        """Tell test rows apart: runs on other rows are not paired (`kedro compare`)."""
        columns = [name for name in _CONTENT if name in self.rows]
        hashed = pd.util.hash_pandas_object(self.rows[columns].astype(str), index=False)
        return hashlib.sha256(hashed.to_numpy().tobytes()).hexdigest()[:16]

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
        with preserved_random_state(), quiet(), one_thread():
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
        for name in [name for name, value in values.items() if not math.isfinite(value)]:
            meta = encoder.mteb_model_meta
            logger.warning(
                "Task '%s': %s of '%s' at width %s is not defined, because all its similarities "
                "are equal; it counts as 0",
                *(self.name, name, meta.name, meta.embed_dim),
            )
            values[name] = 0.0
            statistics[name] = mean_statistic(np.zeros(self.units))
        return TaskResult(values, statistics, next(iter(values)), self.units)

    def _save_task_predictions(
        self, predictions: Any, model: Any, prediction_folder: Path, hf_split: str, hf_subset: str
    ) -> None:
        """Keep the predictions in memory, where mteb would write a file."""
        self._captured = predictions

    def _calculate_descriptive_statistics_from_split(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: mteb would write the statistics into its own installation."""
        raise NotImplementedError


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


@contextmanager
def quiet() -> Iterator[None]:
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
            # Equal similarities have no order: `LocalTask.run` says so in words.
            warnings.simplefilter("ignore", ConstantInputWarning)
            # mteb divides by the labels of texts without any, and then takes 1 for the quotient.
            warnings.filterwarnings("ignore", module=r"mteb\._evaluators\.classification_metrics")
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


def columns_of(rows: pd.DataFrame, columns: Mapping[str, str]) -> Dataset:
    """Copy columns of a frame into an in-memory data set, renamed."""
    return Dataset.from_dict({new: rows[old].tolist() for new, old in columns.items()})


def require_labels(task: LocalTask, labels: pd.Series, split: str) -> None:
    """Refuse rows without a label."""
    missing = int(labels.isna().sum())
    if missing:
        task.refuse(f"has {missing} rows without a label in the split '{split}'")


def require_classes(task: LocalTask, labels: Iterable[Any], split: str) -> None:
    """Refuse fewer than two classes."""
    classes = set(labels)
    if len(classes) < TWO:
        task.refuse(f"has only the label {classes or '{}'} in the split '{split}'; it needs two")
