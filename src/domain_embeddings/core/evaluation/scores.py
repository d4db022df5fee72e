"""The prefix sweep: every model, transform, task and width scored, with paired uncertainty.

All models are scored on the same rows with the same draws, and a bootstrap resample takes the same
rows for every model, transform and width. The difference between any two of them is therefore
judged on its own, which is much sharper than comparing two intervals. Which differences are taken
is a plain list (`contrasts`). Draws depend on the name of the task alone, so runs of other seeds
and methods pair as well, from the replicates that are stored.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.quantisation import FLOAT32, quantiser
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.evaluation.encoder import (
    BankEncoder,
    BankView,
    TaskPrompts,
    task_prompts,
)
from domain_embeddings.core.evaluation.replicates import replicates_bundle
from domain_embeddings.core.evaluation.resampling import draw_counts
from domain_embeddings.core.evaluation.sampling import fit_pairs, fit_vectors
from domain_embeddings.core.evaluation.tasks import LocalTask, TaskResult
from domain_embeddings.core.evaluation.transforms import Transform, fit_transform
from domain_embeddings.core.statistics.bootstrap import interval, resample_indices
from domain_embeddings.core.statistics.comparison import holm, two_sided_p
from domain_embeddings.core.threads import one_thread

logger = logging.getLogger(__name__)

REFERENCE = "reference"
AS_IS = "none"
MEAN_TASK = "mean"
GENERAL_MEAN = "general_mean"
MEAN_METRIC = "main"
FAMILY = ("model", "transform", "precision", "general")
# What the header of the stored replicates says about each of their rows.
STORED = (*("model", "transform", "precision", "width", "task", "metric", "type", "general", "n"),)
COLUMNS = (
    "model",
    "method",
    "transform",
    "precision",
    "task",
    "type",
    "general",
    "width",
    "metric",
    "main",
    "value",
    "n",
    "low",
    "high",
    "p",
    "p_holm",
    "confidence",
    "seed",
    "split",
    "prompts",
    "max_length",
    "mteb_version",
)


@dataclass(frozen=True)
class SweepSettings:
    """What is swept and how uncertainty is estimated.

    Args:
        widths: Prefix widths, increasing.
        transforms: Names of post-hoc transforms.
        precisions: Names of precisions; other than float32 for the vectors as they are only.
        replicates: Bootstrap resamples; 0 leaves the bounds empty.
        confidence: Mass of the intervals.
        seed: Seed of the tasks' probes; the resamples do not depend on it.
        split: The evaluated split.
    """

    widths: Sequence[int]
    transforms: Sequence[str] = ("none", "pca")
    replicates: int = 1_000
    confidence: float = 0.95
    seed: int = 0
    split: str = "test"
    precisions: Sequence[str] = (FLOAT32,)


@dataclass(frozen=True)
class Measurement:
    """A score and its bootstrap replicates (empty where it was not resampled)."""

    value: float
    replicates: np.ndarray = field(default_factory=lambda: np.empty(0))

    def __sub__(self, other: Measurement) -> Measurement:
        """Return the paired difference."""
        paired = self.replicates.size and other.replicates.size
        difference = self.replicates - other.replicates if paired else np.empty(0)
        return Measurement(self.value - other.value, difference)


# Main metric first; metrics by name.
Cell = dict[str, Measurement]


@dataclass(frozen=True)
class Vectors:
    """One kind of vectors that an index could hold.

    Args:
        model: Name of the model.
        transform: Name of the post-hoc transform.
        width: Prefix width.
        precision: How its numbers are stored.
    """

    model: str
    transform: str
    width: int
    precision: str = FLOAT32


@dataclass(frozen=True)
class Contrast:
    """A named comparison: the scores of ``left`` minus those of ``right``, row by row.

    Args:
        name: What its rows have in the column ``model``.
        left: The vectors in question; their transform, width and method stand in the rows.
        right: The vectors they are compared with.
    """

    name: str
    left: Vectors
    right: Vectors


Scores = Mapping[tuple[Vectors, str], Cell]


def contrasts(
    models: Mapping[str, int],
    transforms: Sequence[str],
    widths: Sequence[int],
    precisions: Sequence[str] = (FLOAT32,),
) -> list[Contrast]:
    """List the paired comparisons of a sweep.

    For every model but the reference, under every transform and at every width:

    * ``<model>_minus_reference``: against the untouched model under the same transform. What did
      training change?

    For the same models as they are (transform ``none``), at every width and for every other
    transform T (rotations are the cheap rivals: they change no weight):

    * ``<model>_minus_reference_T``: against the untouched model after T.
    * ``<model>_minus_<model>_T``: against the same model after T.

    For every model and transform, at every width below the full one:

    * ``<model>_minus_full_width``: against the same vectors at full width. What does the cut cost?

    For every model as it is, at every width and in every precision but float32:

    * ``<model>_minus_float32``: against the same vectors in float32. What do fewer bits cost?
    * ``<model>_minus_full_width``: against full width in float32. What do cut and bits cost?

    Args:
        models: Full width by model name.
        transforms: Names of the evaluated transforms.
        widths: Evaluated widths. A model whose full width is not among them is not compared to it.
        precisions: Evaluated precisions.

    Returns:
        The contrasts; a name, transform, width and precision occur once.
    """
    found = []
    for model, full in models.items():
        for transform, width in itertools.product(transforms, widths):
            left = Vectors(model, transform, width)
            rivals = {}
            if model != REFERENCE and REFERENCE in models:
                rivals[REFERENCE] = Vectors(REFERENCE, transform, width)
            if model != REFERENCE and transform == AS_IS:
                rivals |= {
                    f"{other}_{after}": Vectors(other, after, width)
                    for other in (REFERENCE, model)
                    for after in transforms
                    if other in models and after != AS_IS
                }
            if width < full and full in widths:
                rivals["full_width"] = Vectors(model, transform, full)
            found += [Contrast(f"{model}_minus_{name}", left, to) for name, to in rivals.items()]
        # Only vectors as they are have other precisions.
        kinds = _coarse(precisions) if AS_IS in transforms else []
        for precision, width in itertools.product(kinds, widths):
            left = Vectors(model, AS_IS, width, precision)
            found.append(Contrast(f"{model}_minus_float32", left, Vectors(model, AS_IS, width)))
            if full in widths:
                whole = Vectors(model, AS_IS, full)
                found.append(Contrast(f"{model}_minus_full_width", left, whole))
    return found


def _coarse(precisions: Sequence[str]) -> list[str]:
    """Leave out float32."""
    return [precision for precision in precisions if precision != FLOAT32]


def check_widths(widths: Sequence[int], width: int, model: str) -> None:
    """Refuse widths that the model does not have.

    Raises:
        ParameterError: Naming the key, the widths at fault and the largest allowed one.
    """
    wide = [value for value in widths if value > width]
    if wide:
        msg = (
            f"widths: {wide} exceed the width of the model '{model}'; "
            f"the largest allowed is {width}"
        )
        raise ParameterError(msg)


def sweep(  # noqa: PLR0913 - the five ingredients of an evaluation and two settings
    banks: Mapping[str, EmbeddingBank],
    tasks: Sequence[LocalTask],
    specs: Sequence[Mapping[str, Any]],
    pairs: pd.DataFrame,
    settings: SweepSettings,
    *,
    ranges: Bundle | None = None,
    methods: Mapping[str, str] | None = None,
    show_progress: bool = True,
) -> tuple[pd.DataFrame, Bundle]:
    """Score every model, transform, precision, task and width.

    Args:
        banks: Embedding banks by model name; differences are taken to ``reference``, if present.
        tasks: Tasks whose texts are in every bank.
        specs: Task specifications, for the prompts.
        pairs: Sampled training pairs that transforms are fitted on; their texts are in every bank.
        settings: Widths, transforms, precisions and bootstrap.
        ranges: ``quantisation_ranges`` of all models; needed for int8.
        methods: Training method by model name.
        show_progress: Whether to draw a progress bar.

    Returns:
        Tidy scores with the columns `COLUMNS`, one row per model, transform, precision, task, width
        and metric:

        * ``model``: a model, or the name of a contrast of `contrasts`, whose rows hold paired
          differences; ``method``, ``transform``, ``precision``, ``width``, ``prompts`` and
          ``max_length`` are then those of its left side.
        * ``task``, ``type``, ``n``: the task and its number of test rows; the task ``mean`` is the
          mean of the main metrics of all tasks, which are resampled independently.
        * ``general``: whether the task is a general one. Such tasks are not in ``mean``; the task
          ``general_mean`` is their mean.
        * ``metric``, ``main``: the metric, and whether it is the main one of its task.
        * ``value``, ``low``, ``high``: score from 0 to 1 (a difference from -1 to 1) and its
          bootstrap interval of mass ``confidence``; empty bounds for metrics that have no outcome
          per row (macro F1, for example).
        * ``p``, ``p_holm``: of the main metrics of differences, the two-sided p-value of "no
          difference", and the same corrected for its family (`correct`).
        * ``seed``, ``split``, ``mteb_version``: how it was scored.

        And the bootstrap replicates of the main metrics of the models themselves, for comparisons
        between runs (`replicates.replicates_bundle`).

    Raises:
        ParameterError: A width exceeds the width of a model.
        DataError: There are no ranges for int8.
    """
    for name, bank in banks.items():
        check_widths(settings.widths, bank.width, name)
        _warn_untrained(settings.widths, bank, name)
    counts = {task.name: task_draws(task, settings.replicates) for task in tasks}
    cells: dict[tuple[Vectors, str], Cell] = {}
    kinds = len(settings.transforms) + len(_coarse(settings.precisions))
    total = len(banks) * kinds * len(tasks) * len(settings.widths)
    with tqdm(total=total, disable=not show_progress) as bar:
        for name, bank, transform in _fitted(banks, specs, pairs, settings):
            view = BankView(bank, task_prompts(specs, bank.header["prompts"]), transform)
            for task in tasks:
                encoders = _encoders(view, name, settings, ranges)
                for vectors, encoder in encoders.items():
                    bar.set_description(f"{task.name}: {name} {transform.name} {vectors.width}")
                    cells[vectors, task.name] = measure(task.run(encoder), counts[task.name])
                    bar.update()
    table = _Table(banks, tasks, specs, settings, dict(methods or {}))
    return table.rows(cells), table.replicates(cells)


def correct(scores: pd.DataFrame) -> np.ndarray:
    """Correct the p-values of every family of comparisons by Holm's method.

    A family is all that answers one question: the rows of one comparison under one transform and
    precision, at all widths, of the mean and of every task. General tasks are a family of their
    own, because their question is another one: not what was gained, but what was lost.

    Args:
        scores: Tidy scores with the column ``p``.

    Returns:
        Corrected p-values, shape (rows,); NaN where there is no p-value.
    """
    corrected = np.full(len(scores), np.nan)
    places = pd.Series(np.arange(len(scores)), index=scores.index)
    for _, rows in places.groupby([scores[name] for name in FAMILY], sort=False):
        at = rows.to_numpy()
        corrected[at] = holm(scores["p"].to_numpy(dtype=np.float64)[at])
    return corrected


def _encoders(
    view: BankView, model: str, settings: SweepSettings, ranges: Bundle | None
) -> dict[Vectors, BankEncoder]:
    """Return an encoder per precision and width; they share what they look up for one task."""
    view.forget()
    transform = view.transform
    weights = view.bank.header.get("weight_hash")
    encoders = {}
    for precision, width in itertools.product(
        settings.precisions if transform.name == AS_IS else (FLOAT32,), settings.widths
    ):
        codes = quantiser(precision, model, width, ranges, weight_hash=weights)
        vectors = Vectors(model, transform.name, width, precision)
        encoders[vectors] = BankEncoder(view, width, codes, name=f"local/{model}")
    return encoders


def _warn_untrained(widths: Sequence[int], bank: EmbeddingBank, name: str) -> None:
    """Say which widths a nested model was not trained for."""
    trained = bank.header.get("widths")
    untrained = [width for width in widths if trained and width not in trained]
    if untrained:
        logger.warning(
            "The model '%s' was trained for the widths %s, not for %s", name, trained, untrained
        )


def task_draws(task: LocalTask, replicates: int) -> np.ndarray:
    """Draw the resamples of a task: the same for every model and run, independent between tasks.

    Args:
        task: The task.
        replicates: Number of resamples.

    Returns:
        How often each unit was drawn, shape (replicates, units), uint16.
    """
    if replicates == 0:
        return np.empty((0, task.units), dtype=np.uint16)
    seed = zlib.crc32(task.name.encode())
    return draw_counts(resample_indices(task.units, replicates, seed))


def _fitted(
    banks: Mapping[str, EmbeddingBank],
    specs: Sequence[Mapping[str, Any]],
    pairs: pd.DataFrame,
    settings: SweepSettings,
) -> Iterator[tuple[str, EmbeddingBank, Transform]]:
    """Fit every transform on the training text of the model it is applied to."""
    for name, bank in banks.items():
        needed = any(transform != "none" for transform in settings.transforms)
        vectors = fit_vectors(bank, pairs, specs) if needed else np.empty((0, bank.width))
        related = fit_pairs(bank, pairs, specs) if needed else None
        for transform in settings.transforms:
            with one_thread():
                fitted = fit_transform(transform, vectors, related, settings.widths)
            yield name, bank, fitted


def measure(result: TaskResult, counts: np.ndarray) -> Cell:
    """Attach bootstrap replicates to the scores that can be resampled.

    Args:
        result: What an encoder scored on a task.
        counts: The draws of the task (`task_draws`).
    """
    return {
        metric: Measurement(value, statistic(counts))
        if (statistic := result.statistics.get(metric)) is not None
        else Measurement(value)
        for metric, value in result.values.items()
    }


def _subtract(own: Cell, base: Cell) -> Cell:
    """Take the paired difference of every metric."""
    return {metric: measured - base[metric] for metric, measured in own.items()}


def mean_measurement(parts: Sequence[Measurement]) -> Measurement:
    """Average measurements of several tasks; their resamples are independent of each other."""
    complete = all(part.replicates.size for part in parts)
    replicates = np.mean([part.replicates for part in parts], axis=0) if complete else np.empty(0)
    return Measurement(float(np.mean([part.value for part in parts])), replicates)


@dataclass(frozen=True)
class _Table:
    """Lays measurements out as tidy rows."""

    banks: Mapping[str, EmbeddingBank]
    tasks: Sequence[LocalTask]
    specs: Sequence[Mapping[str, Any]]
    settings: SweepSettings
    methods: dict[str, str]

    def rows(self, cells: Scores) -> pd.DataFrame:
        """Return all rows: scores, means over tasks and paired differences."""
        table = [about | self._numbers(measured) for about, measured in self._scores(cells)]
        for about, measured in self._differences(cells):
            p = two_sided_p(measured.replicates) if about["main"] else float("nan")
            table.append(about | self._numbers(measured) | {"p": p})
        frame = pd.DataFrame(table, columns=list(COLUMNS))
        self._warn_if_nothing_can_be_claimed(frame)
        return frame.assign(p_holm=correct(frame))

    def _warn_if_nothing_can_be_claimed(self, frame: pd.DataFrame) -> None:
        """Say so if the smallest possible p-value is too large once it is corrected."""
        compared = frame[frame["p"].notna()]
        if compared.empty:
            return
        tests = int(compared.groupby(list(FAMILY)).size().max())
        needed = math.ceil(2 * tests / (1 - self.settings.confidence))
        if self.settings.replicates < needed:
            logger.warning(
                "evaluation.bootstrap: %d resamples are too few for %d comparisons at a time: no "
                "difference could be claimed after correction; use %d or more",
                *(self.settings.replicates, tests, needed),
            )

    def replicates(self, cells: Scores) -> Bundle:
        """Return the replicates of the main metrics of the models themselves."""
        rows = [
            ({name: about[name] for name in STORED}, measured.value, measured.replicates)
            for about, measured in self._scores(cells)
            if about["main"]
        ]
        names = ("seed", "split", "confidence")
        about = {name: getattr(self.settings, name) for name in names}
        digests = {task.name: task.digest for task in self.tasks}
        return replicates_bundle(rows, {**about, "test_rows": digests})

    def _scores(self, cells: Scores) -> Iterator[tuple[dict[str, Any], Measurement]]:
        """Yield the scores of every kind of vectors."""
        for vectors in dict.fromkeys(vectors for vectors, _ in cells):
            own = {task.name: cells[vectors, task.name] for task in self.tasks}
            yield from self._block(vectors.model, vectors, own)

    def _differences(self, cells: Scores) -> Iterator[tuple[dict[str, Any], Measurement]]:
        """Yield the paired differences of all contrasts."""
        models = {name: bank.width for name, bank in self.banks.items()}
        swept = self.settings
        for contrast in contrasts(models, swept.transforms, swept.widths, swept.precisions):
            gained = {
                task.name: _subtract(
                    cells[contrast.left, task.name], cells[contrast.right, task.name]
                )
                for task in self.tasks
            }
            yield from self._block(contrast.name, contrast.left, gained)

    def _block(
        self, label: str, vectors: Vectors, cells: Mapping[str, Cell]
    ) -> Iterator[tuple[dict[str, Any], Measurement]]:
        """Yield what a row is about, and its measurement, for one kind of vectors or a contrast."""
        header = self.banks[vectors.model].header
        prompts: TaskPrompts = task_prompts(self.specs, header["prompts"])
        common = {
            "model": label,
            "method": self.methods.get(vectors.model, vectors.model),
            "transform": vectors.transform,
            "precision": vectors.precision,
            "width": vectors.width,
            "confidence": self.settings.confidence,
            "seed": self.settings.seed,
            "split": self.settings.split,
            "max_length": int(header["max_length"]),
            "mteb_version": version("mteb"),
        }
        for task in self.tasks:
            sides = prompts[task.name]
            shown = json.dumps({"query": sides["anchor"], "document": sides["positive"]})
            about = common | {"task": task.name, "type": task.type, "general": task.general}
            about |= {"n": task.count, "prompts": shown}
            for position, (metric, measured) in enumerate(cells[task.name].items()):
                yield about | {"metric": metric, "main": position == 0}, measured
        for name, general in ((MEAN_TASK, False), (GENERAL_MEAN, True)):
            averaged = [task for task in self.tasks if task.general == general]
            if averaged:
                mains = [next(iter(cells[task.name].values())) for task in averaged]
                about = common | {"task": name, "type": name, "general": general}
                about |= {"metric": MEAN_METRIC, "main": True, "prompts": json.dumps({})}
                about |= {"n": sum(task.count for task in averaged)}
                yield about, mean_measurement(mains)

    def _numbers(self, measured: Measurement) -> dict[str, float]:
        """Return value and bounds."""
        low = high = float("nan")
        if measured.replicates.size:
            low, high = interval(measured.replicates, self.settings.confidence)
        return {"value": measured.value, "low": float(low), "high": float(high)}
