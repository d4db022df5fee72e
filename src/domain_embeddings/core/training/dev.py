"""A score on held-out dev tasks during training: its curve, the best weights, and when to stop."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import EmbeddingBank
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.evaluation.embed import embed
from domain_embeddings.core.evaluation.sampling import fit_pairs
from domain_embeddings.core.evaluation.scores import (
    AS_IS,
    MEAN_TASK,
    SweepSettings,
    sweep,
)
from domain_embeddings.core.evaluation.tasks import (
    LocalTask,
    build_tasks,
    preserved_random_state,
    task_options,
)
from domain_embeddings.core.training.distributed import from_first
from domain_embeddings.core.training.rotation import fit_as_asked

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.parameters import (
        EvaluationParameters,
        RotationParameters,
        TrainingParameters,
    )

logger = logging.getLogger(__name__)

DEV = "dev"
MODEL = "adapted"
# Training pairs that the rotation to come is fitted on: a part of those at the end.
ROTATION_PAIRS = 2_000
# What mixed precision puts in the place of a model's forward pass.
WRAPPERS = ("forward", "_original_forward")


@dataclass(frozen=True)
class DevScorer:
    """Score a model on dev tasks as the evaluation would score it.

    Args:
        tasks: Tasks with their rows.
        task_specs: Specifications, for prompts.
        pairs: Training pairs that the rotation to come is fitted on; empty without one.
        rotation: That rotation.
        widths: Trained widths, which its axes may depend on.
        settings: Scored widths and seed.
        batch_tokens: Padded tokens per batch.
    """

    tasks: Sequence[LocalTask]
    task_specs: Sequence[Mapping[str, Any]]
    pairs: pd.DataFrame
    rotation: RotationParameters
    widths: Sequence[int]
    settings: SweepSettings
    batch_tokens: int

    @staticmethod
    def build(  # noqa: PLR0913 - what evaluation needs, and the widths that are trained
        dev_tasks: pd.DataFrame,
        task_specs: Sequence[Mapping[str, Any]],
        pairs: pd.DataFrame,
        parameters: TrainingParameters,
        evaluation: EvaluationParameters,
        *,
        widths: Sequence[int],
        seed: int,
    ) -> DevScorer:
        """Prepare the tasks once; nothing is encoded yet.

        Args:
            dev_tasks: Records of the split ``dev`` and of probes.
            task_specs: Task specifications.
            pairs: Training pairs.
            parameters: Section ``training``.
            evaluation: Section ``evaluation``: probes and batches.
            widths: Trained widths, scored where ``dev.widths`` names none.
            seed: Seed of all that the tasks draw, the same at every step.

        Raises:
            ParameterError: A width exceeds the model's.
            DataError: A task cannot be scored.
        """
        scored = list(parameters.dev.widths or widths)
        wider = [width for width in scored if width > widths[-1]]
        if wider:
            msg = f"training.dev.widths: {wider} wider than the model; allowed: 1 to {widths[-1]}"
            raise ParameterError(msg)
        rotated = parameters.rotation.when in ("final", "both")
        count = min(len(pairs), ROTATION_PAIRS, parameters.rotation.pairs) if rotated else 0
        present = set(dev_tasks["task"])
        return DevScorer(
            build_tasks(
                dev_tasks,
                # General text judges the finished model; it must not choose its weights.
                [
                    spec
                    for spec in task_specs
                    if spec["name"] in present and not spec.get("general", False)
                ],
                split=DEV,
                seed=seed,
                options=task_options(evaluation),
            ),
            task_specs,
            pairs.sample(count, random_state=seed),
            parameters.rotation,
            widths,
            SweepSettings(scored, (AS_IS,), replicates=0, seed=seed, split=DEV),
            evaluation.batch_tokens,
        )

    def score(self, model: SentenceTransformer) -> dict[int, float]:
        """Return the mean of the tasks' main metrics by width.

        Training goes on as if nothing had happened: random states, the mode of the model and the
        wrapper of mixed precision are as before.
        """
        with preserved_random_state(), _as_saved(model):
            bundle = embed(
                model,
                self.tasks,
                self.pairs,
                self.task_specs,
                batch_tokens=self.batch_tokens,
                show_progress=False,
            )
            table, _ = sweep(
                {MODEL: EmbeddingBank(self._as_rotated(bundle))},
                self.tasks,
                self.task_specs,
                self.pairs,
                self.settings,
                show_progress=False,
            )
        means = table[(table["model"] == MODEL) & (table["task"] == MEAN_TASK)]
        return dict(zip(means["width"].tolist(), means["value"].tolist(), strict=True))

    def _as_rotated(self, bundle: Bundle) -> Bundle:
        """Turn embeddings as the finished model will be turned."""
        if self.pairs.empty:
            return bundle
        bank = EmbeddingBank(bundle)
        fitted = fit_pairs(bank, self.pairs, self.task_specs)
        basis, mean = fit_as_asked(fitted, self.rotation, self.widths, self.settings.seed)
        turned = prefix((bank.vectors - mean) @ basis, bank.width).astype(np.float32)
        return Bundle({**bundle.arrays, "vectors": turned}, bundle.header)


@contextmanager
def _as_saved(model: SentenceTransformer) -> Iterator[None]:
    """Let a model embed in full precision without dropout, as it will after it was saved."""
    wrapped = {name: vars(model).pop(name) for name in WRAPPERS if name in vars(model)}
    training = model.training
    try:
        yield
    finally:
        vars(model).update(wrapped)
        model.train(training)


@dataclass
class DevSelection:
    """The curve so far, the best weights, and whether to stop.

    Everything that a resumed run needs is in `state_dict`.

    Args:
        scorer: Scores a model.
        every: Steps between two scores.
        steps: Number of the last step, which is always scored.
        patience: Scores in a row without a better one after which training stops; None: never.
    """

    scorer: DevScorer
    every: int
    steps: int
    patience: int | None = None
    best_score: float = -np.inf
    best_step: int = 0
    scores: int = 0
    stale: int = 0
    stopped_at: int | None = None
    weights: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def due(self, step: int) -> bool:
        """Say whether the model is scored after this step."""
        return step % self.every == 0 or step == self.steps

    def score(self, step: int, model: SentenceTransformer) -> dict[str, float]:
        """Score the model, and keep its weights if it is the best so far.

        Args:
            step: Number of steps done.
            model: The model in training.

        Returns:
            ``dev_score``, the mean over widths, and ``dev_score_dim_<m>`` for each of them.
        """
        # One result for all workers: those that disagreed would stop at different steps.
        by_width = from_first(lambda: self.scorer.score(model))
        score = float(np.mean(list(by_width.values())))
        self.scores += 1
        if score > self.best_score:
            self.best_score, self.best_step, self.stale = score, step, 0
            self.weights = {
                name: weight.detach().to("cpu", copy=True)
                for name, weight in model.named_parameters()
                if weight.requires_grad
            }
        else:
            self.stale += 1
        if self.patience is not None and self.stale >= self.patience and step < self.steps:
            self.stopped_at = step
        return {"dev_score": score} | {f"dev_score_dim_{m}": s for m, s in by_width.items()}

    @torch.no_grad()
    def restore(self, model: SentenceTransformer) -> None:
        """Put the best weights back."""
        own = dict(model.named_parameters())
        for name, weight in self.weights.items():
            own[name].copy_(weight)

    def report(self) -> dict[str, Any]:
        """Return what was scored and chosen, for the training report."""
        return {
            "tasks": [task.name for task in self.scorer.tasks],
            "widths": list(self.scorer.settings.widths),
            "scores": self.scores,
            "best_score": self.best_score,
            "best_step": self.best_step,
            "stopped_at": self.stopped_at,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as numbers and CPU tensors."""
        names = ("best_score", "best_step", "scores", "stale", "stopped_at", "weights")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, value)
