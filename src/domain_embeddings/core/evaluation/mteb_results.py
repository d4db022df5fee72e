"""Scores in mteb's own result format, which its leaderboard and its tools read.

A model is filed under its name and the digest of its weights. As mteb files variants of a model,
a narrower, transformed or quantised one is an experiment of it: ``embed_dim`` (as for models that
mteb loads at another width), ``transform`` and ``output_dtypes`` say which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.results import TaskResult

from domain_embeddings.core.evaluation.metrics import metric_name
from domain_embeddings.core.evaluation.scores import AS_IS, MEAN_TASK
from domain_embeddings.core.evaluation.tasks import TASK_CLASSES

FLOAT = "float32"


@dataclass(frozen=True)
class MtebResult:
    """What one model scored on one task.

    Args:
        model: Which model, at which width.
        result: mteb's result.
    """

    model: ModelMeta
    result: TaskResult


def model_meta(
    name: str,
    header: Mapping[str, Any],
    width: int,
    *,
    transform: str = AS_IS,
    precision: str = FLOAT,
) -> ModelMeta:
    """Describe a model at a width to mteb.

    Args:
        name: ``reference`` or ``adapted``.
        header: Description of the model (``encoders.loading.describe``).
        width: Number of coordinates that are kept.
        transform: Post-hoc transform.
        precision: Precision of the coordinates.

    Returns:
        The metadata; the model as it is has no experiment.
    """
    experiment: dict[str, Any] = {}
    if width < header["width"]:
        experiment["embed_dim"] = width
    if transform != AS_IS:
        experiment["transform"] = transform
    if precision != FLOAT:
        experiment["output_dtypes"] = precision
    return ModelMeta.create_empty(
        overwrites={
            "name": f"local/{name}",
            "revision": str(header["weight_hash"]),
            "embed_dim": width,
            "max_tokens": float(header["max_length"]),
            "similarity_fn_name": ScoringFunction.COSINE,
            "experiment_kwargs": experiment or None,
        }
    )


def local_results(
    scores: pd.DataFrame,
    headers: Mapping[str, Mapping[str, Any]],
    revisions: Mapping[str, str],
) -> Iterator[MtebResult]:
    """Turn scores of local tasks into results of mteb.

    Args:
        scores: ``truncation_scores``; the rows of models are taken, those of comparisons and of the
            mean over tasks are not.
        headers: Descriptions of the models by name.
        revisions: Digest of the test rows by task, in the place of a commit.

    Yields:
        One result per model, transform, precision, width and task.
    """
    types = scores["type"].isin(list(TASK_CLASSES))
    rows = scores[scores["model"].isin(list(headers)) & types & (scores["task"] != MEAN_TASK)]
    keys = ["model", "transform", "precision", "width", "task", "type", "split", "mteb_version"]
    for cell, own in rows.groupby(keys, sort=False):
        about: dict[str, Any] = dict(zip(keys, cast("Any", cell), strict=True))
        meta = model_meta(
            about["model"],
            headers[about["model"]],
            int(about["width"]),
            transform=about["transform"],
            precision=about["precision"],
        )
        yield MtebResult(meta, _result(about, own, revisions[about["task"]]))


def _result(about: Mapping[str, Any], rows: pd.DataFrame, revision: str) -> TaskResult:
    """Write the metrics of one task under the names that mteb gives them."""
    reported = TASK_CLASSES[about["type"]].reported
    names = {metric_name(own): theirs for own, theirs in reported.items()}
    values = {
        names.get(str(metric), str(metric)): float(value)
        for metric, value in zip(rows["metric"], rows["value"], strict=True)
    }
    main = rows.loc[rows["main"].astype(bool), "value"].iloc[0]
    return TaskResult(
        dataset_revision=revision,
        task_name=about["task"],
        mteb_version=about["mteb_version"],
        scores={
            about["split"]: [
                {
                    **values,
                    "main_score": float(main),
                    "hf_subset": "default",
                    "languages": ["eng-Latn"],
                }
            ]
        },
        evaluation_time=None,
    )
