"""Train the encoder with the chosen method."""

from __future__ import annotations

from typing import Any

import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.parameters import EvaluationParameters, TrainingParameters


def train_model(
    reference_model: Any,
    training_pairs: pd.DataFrame,
    task_specs: list[dict[str, Any]],
    relation_vectors: Bundle,
    shrinkage: Bundle,
    mined_negatives: pd.DataFrame,
    negatives_report: dict[str, Any],
    dev_tasks: pd.DataFrame,
    parameters: TrainingParameters,
    evaluation: EvaluationParameters,
    widths: list[int],
    seed: int,
) -> tuple[Any, pd.DataFrame, dict[str, Any]]:
    """Return the adapted model, its loss history and the training report."""
    from domain_embeddings.core.tasks.negatives import add_negatives

    if parameters.trains and parameters.launch.workers > 1:
        from domain_embeddings.core.training.launch import train_on_workers as train
    else:
        from domain_embeddings.core.training.train import train

    pairs = add_negatives(
        training_pairs, mined_negatives, negatives_report, relation_vectors.header
    )
    return train(
        reference_model,
        pairs,
        task_specs,
        relation_vectors,
        shrinkage,
        parameters=parameters,
        widths=widths,
        seed=seed,
        dev_tasks=dev_tasks,
        evaluation=evaluation,
        checkpoint_root=parameters.checkpoints.folder,
    )
