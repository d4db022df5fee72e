"""sentence-transformers' trainer, told how to read our batches and to keep every component."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch import Tensor
from transformers import TrainerCallback

from domain_embeddings.core.errors import TrainingError
from domain_embeddings.core.training.batches import Batch, PairCollator
from domain_embeddings.core.training.dev import DevSelection
from domain_embeddings.core.training.distributed import average_gradients, gather, mean, workers
from domain_embeddings.core.training.gradients import PREFIX
from domain_embeddings.core.training.memory import release_memory
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.resumable import ResumableTrainer
from domain_embeddings.core.training.sampling import PairSampler

HISTORY_COLUMNS = ["step", "epoch", "component", "value"]
KEPT_LOGS = ("learning_rate", "grad_norm")


class PairTrainer(ResumableTrainer):
    """Train an `Objective` on batches of `PairCollator`.

    Args:
        *args: As for the base class.
        sampler: Decides which pair ids an epoch draws; None draws every row of the data set once.
        dev: Scores the model during training, keeps the best weights and may stop.
        **kwargs: As for the base class.

    Attributes:
        history: Rows of step, epoch, component and value, averaged between two logging steps, in
            full precision.
    """

    def __init__(
        self,
        *args: Any,
        sampler: PairSampler | None = None,
        dev: DevSelection | None = None,
        **kwargs: Any,
    ) -> None:
        self.sampler = sampler
        self.dev = dev
        self.history: list[dict[str, Any]] = []
        self._sums: dict[str, Tensor] = {}
        self._once: dict[str, Tensor] = {}
        self._count = 0
        self._tokens: dict[str, int] = {}
        super().__init__(*args, **kwargs)
        if dev is not None:
            self.add_callback(_DevCallback(self, dev))

    @property
    def pair_objective(self) -> Objective:
        """The loss, by its real type."""
        return cast("Objective", self.loss)

    def get_batch_sampler(self, dataset: Any, batch_size: int, drop_last: bool, **kw: Any) -> Any:  # type: ignore[override]
        """Cut the order of the sampler into batches."""
        if self.sampler is None:
            return super().get_batch_sampler(dataset, batch_size, drop_last, **kw)
        # Declared for data sets; what it needs is a sampler.
        order: Any = self.sampler
        return DefaultBatchSampler(order, batch_size=batch_size, drop_last=drop_last)

    def get_train_dataloader(self) -> Any:
        """Make the sampler known to the loader: a resumed one of several would not find it."""
        loader: Any = super().get_train_dataloader()
        if self.sampler is not None:
            loader.set_sampler(self.sampler)
        return loader

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Skip the automatic card: the report writes one with measured figures."""

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Leave the learned width weights out of weight decay: it would pull them to equality."""
        names = super().get_decay_parameter_names(model)
        return [name for name in names if not name.endswith("log_variance")]

    def create_accelerator_and_postprocess(self) -> None:
        """Leave the model unwrapped among several workers: gradients are averaged here."""
        super().create_accelerator_and_postprocess()
        if workers() > 1:
            prepare: Any = self.accelerator.prepare_model
            # Evaluation mode means: placed and under autocast, but not distributed.
            accelerator: Any = self.accelerator
            accelerator.prepare_model = functools.partial(prepare, evaluation_mode=True)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Add a batch's gradients; before the optimiser steps, average those of all workers."""
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            groups = cast("Any", self.optimizer).param_groups
            average_gradients(p for group in groups for p in group["params"])
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the total loss of a batch and keep its components.

        Raises:
            TrainingError: If a component is not finite; names it, the step and the pairs.
        """
        objective: Any = self.pair_objective
        objective.step = self.state.global_step
        objective.measure_gradients = self._first_of_first_log()
        if model is self.model_wrapped and objective.model is not model:
            self.override_model_in_loss(objective, cast("Any", model))
        # One autocast region around all chunks: its cache then casts every weight once a step. The
        # wrapper around the model alone would cast them again for every chunk.
        with torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16):
            total, components = objective(inputs)
        self._once |= {k: components.pop(k) for k in list(components) if k.startswith(PREFIX)}
        if workers() > 1:
            values = mean(torch.stack(list(components.values())))
            components = dict(zip(components, values, strict=True))
        self._require_finite(components, inputs)
        for name, value in components.items():
            self._sums[name] = self._sums.get(name, torch.zeros_like(value)) + value
        self._count += 1
        self._tokens = inputs["tokens"]
        return (total, {}) if return_outputs else total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the mean of every component since the last log, and let go of freed memory."""
        release_memory()
        if self._count:
            means = {name: (value / self._count).item() for name, value in self._sums.items()}
            means |= {name: value.item() for name, value in self._once.items()}
            self._sums, self._once, self._count = {}, {}, 0
            self.record(means | {name: float(logs[name]) for name in KEPT_LOGS if name in logs})
        super().log(logs, start_time)

    def record(self, values: Mapping[str, float]) -> None:
        """Add values by component at the current step to the history."""
        step, epoch = self.state.global_step, float(self.state.epoch or 0.0)
        self.history += [
            {"step": step, "epoch": epoch, "component": name, "value": value}
            for name, value in values.items()
        ]

    def _first_of_first_log(self) -> bool:
        """Say whether this is the first batch of the step that is logged first in a run."""
        first = min(int(self.args.logging_steps), self.state.max_steps)
        return self.state.global_step + 1 == first and not self._once

    def progress(self) -> dict[str, Any]:
        """Return history, running sums and counters, as of the last step."""
        return {
            # By column: the rows of a long training are many.
            "history": {
                "step": np.array([row["step"] for row in self.history], dtype=np.int64),
                "epoch": np.array([row["epoch"] for row in self.history], dtype=np.float64),
                "component": [row["component"] for row in self.history],
                "value": np.array([row["value"] for row in self.history], dtype=np.float64),
            },
            "sums": dict(self._sums),
            "count": self._count,
            # Not the collator's own counters: it is one batch ahead of training.
            "tokens": self._tokens,
        }

    def set_progress(self, progress: dict[str, Any]) -> None:
        """Go on counting from what `progress` returned."""
        history = pd.DataFrame(progress["history"], columns=HISTORY_COLUMNS)
        self.history = cast("list[dict[str, Any]]", history.to_dict("records"))
        self._sums = {k: v.to(self.args.device) for k, v in progress["sums"].items()}
        self._count = progress["count"]
        self._tokens = progress["tokens"]
        cast("PairCollator", self.data_collator).tokens = dict(self._tokens)

    def history_frame(self) -> pd.DataFrame:
        """Return the history as a tidy frame."""
        return pd.DataFrame(self.history, columns=HISTORY_COLUMNS)

    def _require_finite(self, components: dict[str, Tensor], inputs: Batch) -> None:
        values = torch.stack(list(components.values()))
        if bool(torch.isfinite(values).all()):
            return
        bad = [name for name, value in components.items() if not bool(torch.isfinite(value))]
        pairs = torch.cat(gather(inputs["pair_id"])).tolist()
        msg = (
            f"Training stopped at step {self.state.global_step + 1}: {', '.join(bad)} not finite. "
            f"Pairs of the batch (pair_id): {pairs}. Lower "
            "training.learning_rate, or set training.precision to fp32."
            f"{self.last_checkpoint()}"
        )
        raise TrainingError(msg)


class _DevCallback(TrainerCallback):
    """Score the model where it is due, and end training when it does not get better."""

    def __init__(self, trainer: PairTrainer, dev: DevSelection) -> None:
        self.trainer, self.dev = trainer, dev

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score after the optimiser step, before anything of this step is logged or saved."""
        if not self.dev.due(state.global_step):
            return
        self.trainer.record(self.dev.score(state.global_step, cast("Any", self.trainer.model)))
        if self.dev.stopped_at is not None:
            control.should_training_stop = True
            # Resumed from here, training would go on for a step before it looks.
            control.should_save = False

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run has to know of the scores so far."""
        return self.dev.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.dev.load_state_dict(state)
