"""A trainer that goes on, to the bit, where a killed one stopped."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from sentence_transformers import SentenceTransformerTrainer
from torch import Tensor, nn
from transformers.trainer import TRAINER_STATE_NAME

from domain_embeddings.core.encoders.loading import backbone
from domain_embeddings.core.errors import TrainingError
from domain_embeddings.core.training.checkpoints import read_state, write_state
from domain_embeddings.core.training.distributed import from_first

if TYPE_CHECKING:
    from domain_embeddings.core.training.checkpoints import Checkpoints

logger = logging.getLogger(__name__)


class ResumableTrainer(SentenceTransformerTrainer):
    """sentence-transformers' trainer with checkpoints of our own.

    The ones of transformers keep optimiser, scheduler and random numbers as pickles (loaded with
    ``weights_only``), know nothing of the state of a loss, and are not written atomically. Only
    *when* to save, and how to skip the batches of an epoch that were seen, stays theirs.

    Attributes:
        checkpoints: Where checkpoints are kept, if at all.
        resumed_from: The step that training went on from; 0 if it started at the beginning.
        seconds_before: How long training took up to that step.
    """

    def __init__(self, *args: Any, checkpoints: Checkpoints | None = None, **kwargs: Any) -> None:
        self.checkpoints = checkpoints
        self.resumed_from = 0
        self._restored: dict[str, Any] = {}
        self.seconds_before = 0.0
        self._started = time.monotonic()
        super().__init__(*args, **kwargs)

    def progress(self) -> dict[str, Any]:
        """Return what this process has counted so far; see `set_progress`."""
        return {}

    def set_progress(self, progress: dict[str, Any]) -> None:
        """Take over what `progress` returned in the process before."""

    def run(self, resume: bool) -> Any:
        """Train, from the newest sound checkpoint or from the beginning.

        Args:
            resume: Whether to look for a checkpoint.

        Returns:
            What transformers' ``train`` returns.
        """
        self._started = time.monotonic()
        if self.checkpoints is None:
            return self.train()
        # Only the first process reads and writes; the others follow it.
        with self.checkpoints.locked() if self.args.should_save else nullcontext():
            start = from_first(self.checkpoints.latest) if resume else None
            return self.train(resume_from_checkpoint=None if start is None else str(start))

    def last_checkpoint(self) -> str:
        """Return a sentence that says where the last good checkpoint is; empty if there is none."""
        steps = [] if self.checkpoints is None else self.checkpoints.steps()
        if not steps or self.checkpoints is None:
            return ""
        return f" The last good checkpoint is of step {steps[0]} in {self.checkpoints.folder}."

    # ------------------------------------------------------------- what transformers calls to save

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save everything that the next step depends on."""
        # A run that is about to end gets its model stored in a moment.
        if self.checkpoints is None or self.control.should_training_stop:
            return
        self._require_finite_weights()
        processes = self._of_all_processes({"random": random_state(), "progress": self.progress()})
        if not self.args.should_save:
            return
        state = {
            "tensors": {name: tensor.detach() for name, tensor in self._trained()},
            "optimizer": cast("Any", self.optimizer).state_dict(),
            "scheduler": cast("Any", self.lr_scheduler).state_dict(),
            "callbacks": {type(c).__name__: c.state_dict() for c in self._stateful_callbacks()},
            "processes": processes,
            "seconds": self.seconds_before + time.monotonic() - self._started,
        }

        def write(folder: Path) -> None:
            write_state(folder, state)
            self.state.save_to_json(str(folder / TRAINER_STATE_NAME))

        self.checkpoints.save(self.state.global_step, write)

    # ------------------------------------------------------------- what transformers calls to load

    def _load_from_checkpoint(self, checkpoint_path: str, model: Any = None) -> None:
        self._restored = read_state(Path(checkpoint_path))
        saved, own = self._restored["tensors"], dict(self._trained())
        if saved.keys() != own.keys():
            msg = (
                f"The checkpoint {checkpoint_path} holds other weights than the model has "
                f"({', '.join(sorted(saved.keys() ^ own.keys())[:3])}); begin anew with "
                "training.resume=never"
            )
            raise TrainingError(msg)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])
        self.seconds_before = self._restored["seconds"]
        self.set_progress(self._own_process()["progress"])

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        cast("Any", self.optimizer).load_state_dict(self._restored["optimizer"])
        cast("Any", self.lr_scheduler).load_state_dict(self._restored["scheduler"])
        for callback in self._stateful_callbacks():
            callback.load_state_dict(self._restored["callbacks"][type(callback).__name__])
        self.resumed_from = self.state.global_step
        # The interval is one of this run, which may differ; it has no influence on the result.
        self.state.save_steps = cast("Any", self.args.save_steps)
        logger.info("Training goes on from step %d (%s).", self.resumed_from, checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Nothing to load: bf16 needs no scaler."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # Called after the batches of the epoch that were seen are skipped.
        if checkpoint is not None:
            set_random_state(self._own_process()["random"])
            self._restored = {}

    # --------------------------------------------------------------------------------------- parts

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters and buffers of the model, then those that only the loss has.

        Frozen weights of the backbone are those of the reference model, so that with adapters a
        checkpoint is hardly larger than they are.
        """
        seen = {id(p) for p in backbone(self.model).parameters() if not p.requires_grad}
        modules = {"model": self.model, "loss": cast("nn.Module", self.loss)}
        for prefix, module in modules.items():
            for name, tensor in chain(
                cast("nn.Module", module).named_parameters(),
                cast("nn.Module", module).named_buffers(),
            ):
                if id(tensor) not in seen:
                    yield f"{prefix}.{name}", tensor
                seen.add(id(tensor))

    def _stateful_callbacks(self) -> list[Any]:
        return [
            callback
            for callback in self.callback_handler.callbacks
            if hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")
        ]

    def _require_finite_weights(self) -> None:
        """Refuse to store weights that are not numbers: the last good checkpoint would go."""
        for name, tensor in self._trained():
            if isinstance(tensor, nn.Parameter) and not bool(torch.isfinite(tensor).all()):
                msg = (
                    f"Training stopped after step {self.state.global_step}: the weight '{name}' is "
                    "not finite. Lower training.learning_rate, or set training.precision to fp32."
                    f"{self.last_checkpoint()}"
                )
                raise TrainingError(msg)

    def _of_all_processes(self, state: dict[str, Any]) -> list[dict[str, Any]]:
        if self.args.world_size == 1:
            return [state]
        states: list[Any] = [None] * self.args.world_size
        torch.distributed.all_gather_object(states, state)
        return states

    def _own_process(self) -> dict[str, Any]:
        return self._restored["processes"][self.args.process_index]


def random_state() -> dict[str, Any]:
    """Return the state of all global generators of this process."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Set all global generators of this process."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
