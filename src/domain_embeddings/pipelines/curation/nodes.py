"""Nodes that clean records, look for leakage and build pairs."""

from __future__ import annotations

import logging
from typing import Any

import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks import curation, leakage, pairs
from domain_embeddings.core.tasks.spec import load_specs
from domain_embeddings.parameters import (
    CurationParameters,
    EvaluationParameters,
    TrainingParameters,
)

logger = logging.getLogger(__name__)

Specs = list[dict[str, Any]]
Report = dict[str, Any]


def curate_records(
    task_records: pd.DataFrame, task_specs: Specs, parameters: CurationParameters
) -> tuple[pd.DataFrame, Report]:
    """Drop unusable records and count them.

    Args:
        task_records: Records as read.
        task_specs: Specs of all tasks.
        parameters: Curation parameters.

    Returns:
        Curated records and the curation report.

    Raises:
        DataError: A task cannot support what it is used for.
    """
    return curation.curate(task_records, load_specs(task_specs), parameters.min_characters)


def find_leakage(curated_records: pd.DataFrame, task_specs: Specs) -> Report:
    """Compare training rows with held-out rows, within and across tasks.

    The report is an output of its own, so it is saved before a later node stops the run.

    Args:
        curated_records: Curated records.
        task_specs: Specs of all tasks.

    Returns:
        The leakage report.
    """
    return leakage.find_leakage(curated_records, load_specs(task_specs))


def build_training_pairs(
    curated_records: pd.DataFrame,
    task_specs: Specs,
    leakage_report: Report,
    parameters: CurationParameters,
    seed: int,
) -> tuple[pd.DataFrame, Report]:
    """Build training pairs under the leakage policy.

    Args:
        curated_records: Curated records.
        task_specs: Specs of all tasks.
        leakage_report: Leakage report of these records.
        parameters: Curation parameters.
        seed: Seed of all choices.

    Returns:
        Training pairs and the pairing report.

    Raises:
        DataError: There is leakage and the policy is to stop, or fewer than two pairs come out.
    """
    records, removed = leakage.without_leakage(curated_records, leakage_report, parameters.leakage)
    table, report = pairs.build_pairs(
        records, load_specs(task_specs), max_pairs=parameters.max_pairs_per_task, seed=seed
    )
    return table, {**report, "removed_as_leakage": removed}


def select_evaluation_tasks(
    curated_records: pd.DataFrame,
    task_specs: Specs,
    leakage_report: Report,
    parameters: CurationParameters,
    evaluation: EvaluationParameters,
) -> pd.DataFrame:
    """Select the rows of the split that is evaluated, and training rows for probes.

    Args:
        curated_records: Curated records.
        task_specs: Specs of all tasks.
        leakage_report: Leakage report of these records.
        parameters: Curation parameters.
        evaluation: Evaluation parameters: the split and the probe.

    Returns:
        Evaluation tasks.

    Raises:
        DataError: There is leakage and the policy is to stop, or a task lacks the split.
    """
    records, _ = leakage.without_leakage(curated_records, leakage_report, parameters.leakage)
    return pairs.select_evaluation(
        records,
        load_specs(task_specs),
        evaluation.split,
        evaluation.classification.samples_per_label,
    )


def select_dev_tasks(
    curated_records: pd.DataFrame,
    task_specs: Specs,
    leakage_report: Report,
    parameters: CurationParameters,
    evaluation: EvaluationParameters,
    training: TrainingParameters,
) -> pd.DataFrame:
    """Select the rows that training is scored on, of the tasks that have a dev split.

    Args:
        curated_records: Curated records.
        task_specs: Specs of all tasks.
        leakage_report: Leakage report of these records.
        parameters: Curation parameters.
        evaluation: Evaluation parameters: the probe.
        training: Training parameters: whether dev tasks are needed.

    Returns:
        Dev tasks; empty if no task has a dev split.

    Raises:
        DataError: There is leakage and the policy is to stop, or training is to be scored and there
            is nothing to score it on.
    """
    records, _ = leakage.without_leakage(curated_records, leakage_report, parameters.leakage)
    samples = evaluation.classification.samples_per_label
    selected = pairs.select_dev(records, load_specs(task_specs), samples)
    if selected.empty:
        reason = "no task with the use 'evaluate' has rows in the split 'dev'"
        if training.trains and training.dev.every is not None:
            msg = (
                f"training.dev.every: {training.dev.every} asks for scores during training, but "
                f"{reason}. Give one a dev split, or set training.dev.every to null."
            )
            raise DataError(msg)
        logger.info("dev_tasks is empty: %s", reason)
    return selected
