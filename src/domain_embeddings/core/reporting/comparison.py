"""Several runs side by side: scores over seeds and test rows, and paired differences.

A *variant* is a setting that was run, with one or several seeds; an *entry* is what can be ranked:
the vectors of a variant, as they are or after a transform. The untouched model is always an entry.
All are scored on the same test rows, so differences are paired (core.statistics.comparison).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation.replicates import restore
from domain_embeddings.core.reporting import palette, wording
from domain_embeddings.core.reporting.frames import (
    ADAPTED,
    AS_IS,
    FLOAT32,
    GENERAL_MEAN,
    MEAN,
    REFERENCE,
    RIVALS,
)
from domain_embeddings.core.statistics.bootstrap import interval
from domain_embeddings.core.statistics.comparison import (
    Difference,
    SeedScores,
    holm,
    paired_difference,
    seed_noise,
)

UNTOUCHED = "untouched"
# The "width" of the mean over all widths.
ALL_WIDTHS = 0
_USUAL_WIDTH = 64


@dataclass(frozen=True)
class ScoredRun:
    """What one run found.

    Args:
        variant: Name of the setting, the same for all its seeds.
        seed: Seed of training and probes.
        scores: ``truncation_scores``.
        replicates: ``score_replicates``; None for a run that has none.
        geometry: ``geometry_scores``; may be empty.
        training: ``training_report``.
        parameters: All parameters, flat, names with dots.
        run_id: Id of its MLflow run; empty if it was not tracked.
        version: Version of its entries in the catalog; empty if not known.
        link: Address of the run in the MLflow UI; empty if not known.
    """

    variant: str
    seed: int
    scores: pd.DataFrame
    replicates: Bundle | None
    geometry: pd.DataFrame
    training: Mapping[str, Any]
    parameters: Mapping[str, Any]
    run_id: str = ""
    version: str = ""
    link: str = ""

    @property
    def untrained(self) -> bool:
        """Whether its model is the untouched one."""
        return self.training.get("method") == REFERENCE


@dataclass(frozen=True)
class Task:
    """A task that every run was scored on.

    Args:
        name: Its name.
        type: Its type.
        metric: Its main metric.
        n: Number of test rows.
        general: Whether it stands for general text, apart from the mean over the domain's tasks.
    """

    name: str
    type: str
    metric: str
    n: int
    general: bool = False


@dataclass(frozen=True)
class Entry:
    """Vectors that could be shipped, scored once per seed.

    Args:
        variant: Name of the setting, or ``untouched``.
        transform: Post-hoc transform; ``none`` for the vectors as they are.
        seeds: Seeds, rising.
        values: Main scores (0..1), shape (seeds, tasks, widths).
        replicates: Bootstrap replicates, shape (seeds, tasks, widths, R); R = 0 without.
    """

    variant: str
    transform: str
    seeds: tuple[int, ...]
    values: np.ndarray
    replicates: np.ndarray

    @property
    def name(self) -> str:
        """What a reader is shown."""
        if self.transform == AS_IS:
            return self.variant
        return f"{self.variant} {palette.transform_name(self.transform)}"

    def score(
        self, tasks: Sequence[int], widths: Sequence[int], seeds: Sequence[int] | None = None
    ) -> SeedScores:
        """Average over some tasks and widths (indices), for every seed or for the given ones."""
        rows = [self.seeds.index(seed) for seed in (self.seeds if seeds is None else seeds)]
        part = np.ix_(rows, tasks, widths)
        replicates = self.replicates[part].astype(np.float64)
        return SeedScores(self.values[part].mean(axis=(1, 2)), replicates.mean(axis=(1, 2)))


@dataclass(frozen=True)
class Estimate:
    """A score with its interval over test rows, and over seeds where there are several."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Runs that were found to be comparable.

    Args:
        runs: The runs.
        entries: What is ranked, the untouched model first.
        tasks: Tasks that all of them were scored on.
        widths: Widths that all of them were scored at, rising.
        confidence: Mass of the intervals.
        notes: What a reader has to know about the selection.
        failures: Runs that were wanted and are not there: name and reason.
    """

    runs: Sequence[ScoredRun]
    entries: Sequence[Entry]
    tasks: Sequence[Task]
    widths: Sequence[int]
    confidence: float
    notes: Sequence[str] = ()
    failures: Sequence[tuple[str, str]] = field(default=())

    @property
    def contenders(self) -> list[Entry]:
        """Entries that are compared in pairs: all as they are, and the cheap rivals."""
        rivals = [(UNTOUCHED, transform) for transform in RIVALS]
        return [
            e for e in self.entries if e.transform == AS_IS or (e.variant, e.transform) in rivals
        ]

    @property
    def seeds(self) -> list[int]:
        """All seeds, rising."""
        return sorted({run.seed for run in self.runs})

    def groups(self) -> dict[str, list[int]]:
        """Return the means, each with the indices of its tasks, and then every task."""
        domain = [k for k, task in enumerate(self.tasks) if not task.general]
        general = [k for k, task in enumerate(self.tasks) if task.general]
        means = {name: rows for name, rows in ((MEAN, domain), (GENERAL_MEAN, general)) if rows}
        return means | {task.name: [k] for k, task in enumerate(self.tasks)}

    def at(self, width: int) -> list[int]:
        """Return the indices of one width, or of all for `ALL_WIDTHS`."""
        if width == ALL_WIDTHS:
            return list(range(len(self.widths)))
        return [list(self.widths).index(width)]

    def estimate(self, entry: Entry, group: str, width: int) -> Estimate:
        """Estimate a score.

        Args:
            entry: What is scored.
            group: A task, or a mean of `groups`.
            width: A width or `ALL_WIDTHS`.

        Returns:
            The mean over the seeds; NaN bounds where there are no replicates.
        """
        score = entry.score(self.groups()[group], self.at(width))
        rows = score.replicates.mean(axis=0)
        drawn = rows + seed_noise(score.values, len(rows))
        # With two seeds the interval would go beyond what any score can be.
        low, high = np.clip(interval(drawn, self.confidence), -1.0, 1.0)
        return Estimate(float(score.values.mean()), float(low), float(high))

    def difference(self, left: Entry, right: Entry, group: str, width: int) -> Difference:
        """Take the paired difference of two entries over the seeds that both have.

        The p-value of a difference beyond all replicates is that of a normal distribution of their
        spread: their number alone (2 / (R + 1) at the least) would not survive a correction.
        """
        seeds = sorted({*left.seeds} & {*right.seeds})
        if not seeds:
            nan = float("nan")
            return Difference(nan, nan, nan, nan, 0, np.empty(0))
        tasks, widths = self.groups()[group], self.at(width)
        found = paired_difference(
            left.score(tasks, widths, seeds), right.score(tasks, widths, seeds), self.confidence
        )
        floor = 2.0 / (len(found.replicates) + 1)
        if not found.p <= floor:
            return found
        spread = float(np.nanstd(found.replicates))
        tail = 2.0 * float(norm.sf(abs(found.value) / spread)) if spread > 0 else floor
        smaller = min(floor, tail)
        return replace(found, p=smaller)

    def score_table(self) -> pd.DataFrame:
        """Return every estimate as a tidy table.

        Returns:
            Columns variant, transform, task (or ``mean`` or ``general_mean``), type, metric, n,
            width (0: mean over all widths), seeds (their number), value, low, high (0..1).
        """
        about = {task.name: task for task in self.tasks}
        rows = []
        for entry, (group, members), width in itertools.product(
            self.entries, self.groups().items(), [*self.widths, ALL_WIDTHS]
        ):
            found = self.estimate(entry, group, width)
            task = about.get(group)
            rows.append(
                {
                    "variant": entry.variant,
                    "transform": entry.transform,
                    "task": group,
                    "type": task.type if task else group,
                    "metric": task.metric if task else "main",
                    "n": sum(self.tasks[k].n for k in members),
                    "width": width,
                    "seeds": len(entry.seeds),
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                }
            )
        return pd.DataFrame(rows)

    def difference_table(self) -> pd.DataFrame:
        """Return the paired differences of all contenders as a tidy table.

        Returns:
            Columns left, right (entries), task, width (0: mean over all widths), value, low, high,
            p, p_holm, seeds. Holm's correction is over all pairs of entries at one width, for
            every mean, and for all single tasks together.
        """
        rows = []
        means = (MEAN, GENERAL_MEAN)
        for (left, right), group, width in itertools.product(
            itertools.combinations(self.contenders, 2), self.groups(), [*self.widths, ALL_WIDTHS]
        ):
            found = self.difference(left, right, group, width)
            rows.append(
                {
                    "left": left.name,
                    "right": right.name,
                    "task": group,
                    "width": width,
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                    "p": found.p,
                    "seeds": found.seeds,
                    "family": f"{group if group in means else 'tasks'}/{width}",
                }
            )
        frame = pd.DataFrame(rows)
        corrected = frame.groupby("family", sort=False)["p"].transform(lambda p: holm(p.to_numpy()))
        return frame.assign(p_holm=corrected).drop(columns="family")

    def ranking(self, width: int) -> list[dict[str, Any]]:
        """Rank all entries by their mean score at a width.

        Returns:
            One dict per entry, the best first: entry, estimate, best (difference to the first one,
            with its Holm-corrected p over the table), gain (the same to the untouched model),
            told_apart and gain_verdict in words.
        """
        untouched = self.entries[0]
        found = [(entry, self.estimate(entry, MEAN, width)) for entry in self.entries]
        found.sort(key=lambda pair: -pair[1].value)
        best = found[0][0]
        to_best = self._against(best, [entry for entry, _ in found], width)
        to_untouched = self._against(untouched, [entry for entry, _ in found], width)
        return [
            {
                "entry": entry,
                "estimate": estimate,
                "to_best": lost,
                "best_verdict": "" if entry is best else self.verdict(lost, p_lost),
                "to_untouched": gained,
                "gain_verdict": "" if entry is untouched else self.verdict(gained, p_gained),
            }
            for (entry, estimate), (lost, p_lost), (gained, p_gained) in zip(
                found, to_best, to_untouched, strict=True
            )
        ]

    def _against(
        self, other: Entry, entries: Sequence[Entry], width: int
    ) -> list[tuple[Difference, float]]:
        """Take the differences of all entries to one of them, with p-values corrected for it."""
        taken = [self.difference(entry, other, MEAN, width) for entry in entries]
        p = [
            float("nan") if entry is other else found.p
            for entry, found in zip(entries, taken, strict=True)
        ]
        return list(zip(taken, (float(value) for value in holm(p)), strict=True))

    def verdict(self, found: Difference, corrected: float) -> str:
        """Say what a difference shows: only what its interval and its corrected p both allow."""
        return wording.verdict(found.value, found.low, found.high, corrected, self.confidence)


def chosen_width(widths: Sequence[int], wanted: int | None = None) -> int:
    """Choose the width that entries are compared at in pairs.

    Args:
        widths: Widths that were scored, rising.
        wanted: The user's choice.

    Returns:
        The user's choice, else 64 where it was scored, else the middle one.

    Raises:
        DataError: If the user's choice was not scored.
    """
    if wanted is not None and wanted not in widths:
        msg = f"--width: {wanted} was not scored; allowed: {', '.join(map(str, widths))}"
        raise DataError(msg)
    usual = _USUAL_WIDTH if _USUAL_WIDTH in widths else widths[(len(widths) - 1) // 2]
    return usual if wanted is None else wanted


def compare_runs(
    runs: Sequence[ScoredRun],
    confidence: float,
    notes: Sequence[str] = (),
    failures: Sequence[tuple[str, str]] = (),
) -> Comparison:
    """Find what runs have in common, and lay their scores out by seed, task and width.

    Args:
        runs: Runs of one or several variants and seeds.
        confidence: Mass of the intervals (0..1).
        notes: What is known about the selection already.
        failures: Name and reason of runs that are missing.

    Returns:
        The comparison.

    Raises:
        DataError: There is no run, two runs are of one variant and seed, they were scored on
            different splits, or share no task or no width.
    """
    if not runs:
        msg = "There is no run to compare."
        raise DataError(msg)
    _require_one_each(runs)
    splits = sorted({str(split) for run in runs for split in run.scores["split"].unique()})
    if len(splits) > 1:
        msg = (
            f"Runs on different splits cannot be compared: {', '.join(splits)}. "
            "Choose runs of one evaluation.split."
        )
        raise DataError(msg)
    mains = [_main(run) for run in runs]
    tasks, task_notes = _shared_tasks(runs, mains)
    widths, width_notes = _shared_widths(mains)
    tables = [_table(run, main, tasks, widths) for run, main in zip(runs, mains, strict=True)]
    entries, entry_notes = _entries(runs, tables)
    found = [*notes, *task_notes, *width_notes, *entry_notes]
    return Comparison(runs, entries, tasks, widths, confidence, found, failures)


def _require_one_each(runs: Sequence[ScoredRun]) -> None:
    """Refuse two runs of one variant and seed, of which one would be dropped unseen."""
    seen: dict[tuple[str, int], ScoredRun] = {}
    for run in runs:
        other = seen.setdefault((run.variant, run.seed), run)
        if other is not run:
            msg = (
                f"Two runs of '{run.variant}' with seed {run.seed} "
                f"({other.run_id or other.version}, {run.run_id or run.version}): choose one."
            )
            raise DataError(msg)


def _main(run: ScoredRun) -> pd.DataFrame:
    """Select the main scores of both models in float32, without means."""
    rows = run.scores[run.scores["main"].astype(bool)]
    rows = rows[rows["model"].isin([REFERENCE, ADAPTED])]
    rows = rows[~rows["task"].isin([MEAN, GENERAL_MEAN])]
    if "precision" in rows.columns:
        rows = rows[rows["precision"] == FLOAT32]
    if rows.empty:
        msg = f"'{run.variant}', seed {run.seed}: no main scores"
        raise DataError(msg)
    return rows


def _described(run: ScoredRun, main: pd.DataFrame) -> dict[str, tuple[Task, str]]:
    """Return the tasks of a run by name, with a digest of their test rows ('' if not known)."""
    digests = {} if run.replicates is None else run.replicates.header.get("test_rows", {})
    found = {}
    for row in main.drop_duplicates("task").to_dict("records"):
        name = str(row["task"])
        task = Task(
            name,
            str(row["type"]),
            str(row["metric"]),
            int(row["n"]),
            bool(row.get("general", False)),
        )
        found[name] = (task, str(digests.get(name, "")))
    return found


def _shared_tasks(
    runs: Sequence[ScoredRun], mains: Sequence[pd.DataFrame]
) -> tuple[list[Task], list[str]]:
    """Find the tasks that all runs were scored on with the same rows; say which were not."""
    described = [_described(run, main) for run, main in zip(runs, mains, strict=True)]
    names = list(dict.fromkeys(name for tasks in described for name in tasks))
    shared, notes = [], []
    for name in names:
        kinds = {tasks[name] for tasks in described if name in tasks}
        missing = sum(name not in tasks for tasks in described)
        if missing:
            notes.append(f"Task '{name}' is left out: {missing} of {len(runs)} runs lack it.")
        elif len(kinds) > 1:
            rows = sorted({task.n for task, _ in kinds})
            numbers = ", ".join(f"{n:,}" for n in rows)
            notes.append(
                f"Task '{name}' is left out: the runs were scored on different test rows "
                f"({numbers} rows) or with different metrics."
            )
        else:
            shared.append(kinds.pop()[0])
    if not any(not task.general for task in shared):
        msg = "\n  ".join(["The runs share no task with the same test rows:", *notes])
        raise DataError(msg)
    return sorted(shared, key=lambda task: (task.general, task.name)), notes


def _shared_widths(mains: Sequence[pd.DataFrame]) -> tuple[list[int], list[str]]:
    """Find the widths that all runs were scored at."""
    sets = [{int(width) for width in main["width"]} for main in mains]
    shared, every = set.intersection(*sets), set.union(*sets)
    if not shared:
        msg = f"The runs share no width; scored were {sorted(every)}"
        raise DataError(msg)
    lost = sorted(every - shared)
    notes = [f"Widths that not all runs have are left out: {lost}."] if lost else []
    return sorted(shared), notes


# (model, transform) -> values (tasks, widths), replicates (tasks, widths, R)
_Tables = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]


def _table(
    run: ScoredRun, main: pd.DataFrame, tasks: Sequence[Task], widths: Sequence[int]
) -> _Tables:
    """Lay the scores of a run out by model and transform."""
    places = {task.name: k for k, task in enumerate(tasks)}, {w: k for k, w in enumerate(widths)}
    drawn = _replicates(run.replicates)
    count = len(next(iter(drawn.values()))) if drawn else 0
    found: _Tables = {}
    for row in main.to_dict("records"):
        key = str(row["model"]), str(row["transform"])
        task, width = str(row["task"]), int(row["width"])
        if task not in places[0] or width not in places[1]:
            continue
        shape = len(tasks), len(widths)
        values, replicates = found.setdefault(
            key, (np.full(shape, np.nan), np.full((*shape, count), np.nan, dtype=np.float32))
        )
        at = places[0][task], places[1][width]
        values[at] = float(row["value"])
        replicates[at] = drawn.get((*key, task, width), np.nan)
    return {key: table for key, table in found.items() if np.isfinite(table[0]).all()}


def _replicates(bundle: Bundle | None) -> dict[tuple[str, str, str, int], np.ndarray]:
    """Return the replicates of a run by model, transform, task and width, NaN where undefined."""
    if bundle is None:
        return {}
    drawn = restore(bundle)
    return {
        (row["model"], row["transform"], row["task"], int(row["width"])): drawn[k]
        for k, row in enumerate(bundle.header["rows"])
        if row.get("precision", FLOAT32) == FLOAT32
    }


@dataclass
class _Group:
    """Runs that have one untouched model: by seed, the tables of a run."""

    tables: dict[int, _Tables] = field(default_factory=dict)
    name: str = UNTOUCHED

    def takes(self, seed: int, tables: _Tables) -> bool:
        """Add the untouched model of a run, if it is the same where the seed is."""
        own = {key: table for key, table in tables.items() if key[0] == REFERENCE}
        other = self.tables.setdefault(seed, own)
        key = (REFERENCE, AS_IS)
        return key in own and key in other and bool(np.allclose(own[key][0], other[key][0]))


def _entries(runs: Sequence[ScoredRun], tables: Sequence[_Tables]) -> tuple[list[Entry], list[str]]:
    """Gather the seeds of every variant and transform, the untouched model first."""
    count = min(
        (replicates.shape[-1] for table in tables for _, replicates in table.values()), default=0
    )
    notes = _replicate_notes(runs, count)
    groups: list[_Group] = []
    for run, table in zip(runs, tables, strict=True):
        if not any(group.takes(run.seed, table) for group in groups):
            name = UNTOUCHED if not groups else f"{UNTOUCHED} (of {run.variant})"
            groups.append(_Group(name=name))
            groups[-1].takes(run.seed, table)
    if len(groups) > 1:
        notes.append(
            "The runs do not share one untouched model (or its scores differ at the same seed): "
            f"there are {len(groups)}, each shown."
        )
    sources = [(group.name, REFERENCE, group.tables) for group in groups]
    trained: dict[str, dict[int, _Tables]] = {}
    for run, table in zip(runs, tables, strict=True):
        if not run.untrained:
            trained.setdefault(run.variant, {})[run.seed] = table
    sources += [(variant, ADAPTED, by_seed) for variant, by_seed in trained.items()]
    entries = [
        entry for name, model, by_seed in sources for entry in _gather(name, model, by_seed, count)
    ]
    return entries, notes


def _gather(name: str, model: str, by_seed: Mapping[int, _Tables], count: int) -> Iterator[Entry]:
    """Stack the seeds of one variant; a transform needs all of them."""
    seeds = tuple(sorted(by_seed))
    transforms = dict.fromkeys(
        transform for table in by_seed.values() for own, transform in table if own == model
    )
    for transform in transforms:
        found = [by_seed[seed].get((model, transform)) for seed in seeds]
        stacked = [table for table in found if table is not None]
        if len(stacked) == len(seeds):
            yield Entry(
                name,
                transform,
                seeds,
                np.stack([values for values, _ in stacked]),
                np.stack([replicates[..., :count] for _, replicates in stacked]),
            )


def _replicate_notes(runs: Sequence[ScoredRun], count: int) -> list[str]:
    """Say where intervals are missing or coarser than a run's own."""
    without = [run for run in runs if run.replicates is None]
    if without:
        return [
            f"{wording.plural(len(without), 'run')} of {len(runs)} lack score_replicates, so no "
            "interval can be given and nothing is claimed."
        ]
    if count == 0:
        return ["The runs have no bootstrap (evaluation.bootstrap: 0): nothing is claimed."]
    counts = {int(run.replicates["replicates"].shape[1]) for run in runs if run.replicates}
    if len(counts) > 1:
        return [f"The runs differ in evaluation.bootstrap; the first {count} resamples are used."]
    return []
