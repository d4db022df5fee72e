"""From task specifications and records to tasks that can be scored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation.tasks.base import LocalTask, TaskOptions
from domain_embeddings.core.evaluation.tasks.classification import (
    ClassificationTask,
    MultilabelTask,
)
from domain_embeddings.core.evaluation.tasks.clustering import ClusteringTask
from domain_embeddings.core.evaluation.tasks.pairs import (
    BitextMiningTask,
    PairClassificationTask,
    STSTask,
    SummarizationTask,
)
from domain_embeddings.core.evaluation.tasks.retrieval import RerankingTask, RetrievalTask

if TYPE_CHECKING:
    from domain_embeddings.parameters import EvaluationParameters

logger = logging.getLogger(__name__)

TASK_CLASSES: dict[str, type[LocalTask]] = {
    "classification": ClassificationTask,
    "multilabel": MultilabelTask,
    "retrieval": RetrievalTask,
    "reranking": RerankingTask,
    "pair_classification": PairClassificationTask,
    "sts": STSTask,
    "clustering": ClusteringTask,
    "bitext_mining": BitextMiningTask,
    "summarization": SummarizationTask,
}


def task_options(parameters: EvaluationParameters) -> TaskOptions:
    """Return the settings of the probes that the section ``evaluation`` asks for."""
    return TaskOptions(
        samples_per_label=parameters.classification.samples_per_label,
        classification_experiments=parameters.classification.experiments,
        clustering_documents=parameters.clustering.documents,
        clustering_experiments=parameters.clustering.experiments,
    )


def build_tasks(
    records: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    *,
    split: str,
    seed: int,
    options: TaskOptions | None = None,
) -> list[LocalTask]:
    """Build the tasks that the specifications ask to evaluate, in their order.

    Args:
        records: Records of all tasks (columns of ``core.tasks.records``).
        specs: Task specifications; those without the use ``evaluate`` are left out.
        split: The evaluated split.
        seed: Seed of all that the tasks draw.
        options: Settings of the probes.

    Returns:
        One task per specification that can be scored.

    Raises:
        DataError: A task cannot be scored on this split, or there is none.
    """
    tasks = []
    for spec in specs:
        if "evaluate" not in spec.get("uses", ("train", "evaluate")):
            continue
        kind = TASK_CLASSES.get(spec["type"])
        if kind is None:
            logger.warning(
                "Task '%s' is not scored: the type '%s' has no score (types that have one: %s)",
                *(spec["name"], spec["type"], ", ".join(TASK_CLASSES)),
            )
            continue
        rows = records[records["task"] == spec["name"]]
        tasks.append(kind(spec, rows, split, seed=seed, options=options or TaskOptions()))
    if not tasks:
        msg = (
            "No task can be evaluated: none has the use 'evaluate' and one of the types "
            f"{', '.join(TASK_CLASSES)}"
        )
        raise DataError(msg)
    return tasks
