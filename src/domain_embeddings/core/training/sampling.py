"""Which pairs an epoch draws, and in which order: a function of seed and epoch alone.

Nothing is kept between epochs. A resumed run, and every one of several processes, therefore finds
the same order, and what a training run has seen can be counted afterwards by walking it again.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Sampler

from domain_embeddings.core.errors import ParameterError

if TYPE_CHECKING:
    from domain_embeddings.parameters import SamplingParameters

logger = logging.getLogger(__name__)


def require_batch(batch_size: int, pairs: int, workers: int) -> None:
    """Refuse a batch that an epoch cannot fill.

    Args:
        batch_size: Pairs per worker and step.
        pairs: Pairs of an epoch.
        workers: Number of workers.

    Raises:
        ParameterError: Naming the key and what is allowed.
    """
    if batch_size * workers > pairs:
        msg = (
            f"training.batch_size: {batch_size} is more than the {pairs // workers} training pairs "
            f"of an epoch; allowed: 2 to {pairs // workers}"
        )
        raise ParameterError(msg)


class PairSampler(Sampler[int]):
    """Yield pair ids, epoch by epoch; consecutive blocks of them are the batches.

    Args:
        tasks: Task of each pair; pair k is row k.
        task_specs: Specifications with ``name`` and ``weight``.
        parameters: How sources are weighted, and whether they share batches.
        seed: Seed of every draw.
        block: Rows of one step over all processes. A block of ``same_source`` holds one task, so
            negatives that are gathered across processes are of that task, too.

    Raises:
        ParameterError: If no task has a weight above 0.

    Source:
        docs/method.md, section 3b.
    """

    def __init__(
        self,
        tasks: pd.Series,
        task_specs: Sequence[Mapping[str, Any]],
        parameters: SamplingParameters,
        *,
        seed: int,
        block: int,
    ) -> None:
        super().__init__()
        self.seed, self.block, self.epoch = seed, block, 0
        self.names, self.codes = np.unique(tasks.to_numpy(dtype=str), return_inverse=True)
        self.rows = [np.flatnonzero(self.codes == code) for code in range(len(self.names))]
        weights = task_weights(task_specs)
        if not any(weights.get(str(name), 1.0) for name in self.names):
            msg = "raw_tasks: every task has weight 0, so there is nothing to train on"
            raise ParameterError(msg)
        self.same_source = parameters.batches == "same_source"
        self._fixed = None
        if parameters.sources == "proportional" and not self.same_source:
            self._fixed = weighted_ids(tasks, task_specs, seed)
        self.counts = self._counts(task_specs, parameters)

    def _counts(
        self, task_specs: Sequence[Mapping[str, Any]], parameters: SamplingParameters
    ) -> np.ndarray:
        """Return how many rows of each source an epoch draws."""
        if self._fixed is not None:
            return np.bincount(self.codes[self._fixed], minlength=len(self.names))
        weights = task_weights(task_specs)
        sizes = np.array([len(rows) for rows in self.rows], dtype=float)
        weight = np.array([weights.get(str(name), 1.0) for name in self.names])
        powers = {"proportional": 1.0, "temperature": 1.0 / parameters.temperature, "equal": 0.0}
        shares = weight * sizes ** powers[parameters.sources]
        unit = self.block if self.same_source else 1
        return unit * whole_parts(shares, round(float(weight @ sizes) / unit))

    def __len__(self) -> int:
        """Return the number of rows of an epoch."""
        return int(self.counts.sum())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is iterated over next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        """Yield the pair ids of the current epoch."""
        return iter(self.order(self.epoch).tolist())

    def order(self, epoch: int) -> np.ndarray:
        """Return the pair ids of an epoch in order, shape (len(self),)."""
        generator = torch.Generator().manual_seed(self.seed + epoch)
        if self._fixed is not None:
            return self._fixed[torch.randperm(len(self._fixed), generator=generator).numpy()]
        drawn = np.concatenate([self._draw(code, epoch) for code in range(len(self.names))])
        groups = drawn.reshape(-1, self.block if self.same_source else 1)
        return groups[torch.randperm(len(groups), generator=generator).numpy()].ravel()

    def _draw(self, code: int, epoch: int) -> np.ndarray:
        """Return the next rows of a source that is dealt out as one endless shuffled stream.

        Every pair is drawn once before any is drawn again, whatever the length of an epoch.
        """
        rows, count = self.rows[code], int(self.counts[code])
        if not count:
            return rows[:0]
        first, last = epoch * count, (epoch + 1) * count
        laps = range(first // len(rows), -(-last // len(rows)))
        source = zlib.crc32(str(self.names[code]).encode())
        dealt = [np.random.default_rng([self.seed, source, lap]).permutation(rows) for lap in laps]
        skipped = first - laps.start * len(rows)
        return np.concatenate(dealt)[skipped : skipped + count]

    def report(self, steps: int, accumulation: int = 1) -> list[dict[str, Any]]:
        """Count what a training run has drawn, by walking its order again.

        Args:
            steps: Optimiser steps that were made.
            accumulation: Batches of a step; the last step of an epoch may have fewer.

        Returns:
            Per source: ``available`` pairs, ``per_epoch`` rows, ``drawn`` rows, ``distinct`` pairs
            among them, ``repeated_in_batch`` rows whose pair was in the same batch already,
            ``dropped`` rows that complete epochs left over, and ``epochs``, drawn over available.
        """
        whole = len(self) // self.block
        per_epoch = -(-whole // accumulation)
        seen = np.zeros(len(self.codes), dtype=np.int64)
        repeated, dropped = np.zeros_like(seen), np.zeros_like(seen)
        for epoch in range(-(-steps // per_epoch)):
            batches = min(whole, (steps - epoch * per_epoch) * accumulation)
            order = self.order(epoch)
            used = order[: batches * self.block]
            np.add.at(seen, used, 1)
            np.add.at(repeated, _repeats(used.reshape(batches, self.block)), 1)
            if batches == whole:
                np.add.at(dropped, order[batches * self.block :], 1)
        found = [
            {
                "task": str(name),
                "available": len(rows),
                "per_epoch": int(count),
                "drawn": int(seen[rows].sum()),
                "distinct": int((seen[rows] > 0).sum()),
                "repeated_in_batch": int(repeated[rows].sum()),
                "dropped": int(dropped[rows].sum()),
                "epochs": float(seen[rows].sum() / len(rows)),
            }
            for name, rows, count in zip(self.names, self.rows, self.counts, strict=True)
        ]
        unseen = [str(s["task"]) for s in found if s["per_epoch"] and not s["drawn"]]
        if unseen:
            logger.warning("No pair of %s was drawn in %d steps", ", ".join(unseen), steps)
        return found


def _repeats(batches: np.ndarray) -> np.ndarray:
    """Return the pair ids that a batch, a row of ``batches``, holds once more than needed."""
    ordered = np.sort(batches, axis=1)
    return ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]]


def task_weights(task_specs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weight of each task by name; 1 where a specification has none."""
    return {str(spec["name"]): _weight(spec) for spec in task_specs}


def _weight(spec: Mapping[str, Any]) -> float:
    weight = spec.get("weight")
    return 1.0 if weight is None else float(weight)


def whole_parts(shares: np.ndarray, total: int) -> np.ndarray:
    """Split a total into whole parts by largest remainder.

    Args:
        shares: Shares of any sum, shape (S,).
        total: What is split.

    Returns:
        S counts that sum to the total, but for positive shares that come to 0, which become 1: no
        source is rounded away.
    """
    exact = shares / shares.sum() * total
    counts = np.floor(exact).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return np.maximum(counts, shares > 0)


def weighted_ids(
    tasks: pd.Series, task_specs: Sequence[Mapping[str, Any]], seed: int
) -> np.ndarray:
    """Repeat or thin out pairs by the weight of their task.

    Args:
        tasks: Task of each pair.
        task_specs: Specifications with ``name`` and ``weight``; weight 1 leaves a task as it is.
        seed: Chooses the pairs that a fractional weight keeps.

    Returns:
        Pair ids of one epoch, in ascending order.
    """
    rng = np.random.default_rng(seed)
    expected = tasks.map(task_weights(task_specs)).fillna(1.0).to_numpy()
    whole = np.floor(expected).astype(int)
    counts = whole + (rng.random(len(tasks)) < expected - whole)
    return np.repeat(np.arange(len(tasks)), counts)
