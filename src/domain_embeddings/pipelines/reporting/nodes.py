"""Answer which width to ship, and show why."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.parameters import (
    CurationParameters,
    EvaluationParameters,
    ReportingParameters,
    RezeParameters,
)

logger = logging.getLogger(__name__)


def recommend(
    truncation_scores: pd.DataFrame, reporting: ReportingParameters, widths: list[int]
) -> dict[str, Any]:
    """Return the recommended width, the table behind it and the answer in one sentence."""
    from domain_embeddings.core.reporting.recommend import recommend_width

    return recommend_width(
        truncation_scores,
        widths,
        tolerance=reporting.tolerance,
        quality_floor=reporting.quality_floor,
    )


def check_retention(
    width_recommendation: dict[str, Any],
    adaptation_report: str,
    model_card: str,
    evaluation: EvaluationParameters,
) -> None:
    """Fail a run that lost more general quality than ``evaluation.max_general_drop`` allows.

    Report and card are inputs for the order alone: this is the last node, so nothing is lost.

    Raises:
        GateError: With the figures.
    """
    from domain_embeddings.core.reporting.retention import check_general_drop

    check_general_drop(width_recommendation, evaluation.max_general_drop)


def plot_quality(truncation_scores: pd.DataFrame) -> Any:
    """Return the figure of quality by dimension."""
    from domain_embeddings.core.reporting.plots import quality_by_dimension

    return quality_by_dimension(truncation_scores)


def draw_quality(truncation_scores: pd.DataFrame) -> Any:
    """Return the same as a picture, for documents and previews."""
    from domain_embeddings.core.reporting.static import quality_png

    return quality_png(truncation_scores)


def plot_costs(vector_costs: pd.DataFrame, width_recommendation: dict[str, Any]) -> Any:
    """Return the figure of quality by size."""
    from domain_embeddings.core.reporting.plots import quality_by_bytes

    return quality_by_bytes(vector_costs, width_recommendation)


def plot_spectrum(relation_eigenspace: Bundle, shrinkage: Bundle) -> Any:
    """Return the figure of the eigenvalues of the relation vectors."""
    from domain_embeddings.core.reporting.plots import eigen_spectrum

    return eigen_spectrum(relation_eigenspace, shrinkage)


def plot_task_variance(geometry_scores: pd.DataFrame) -> Any:
    """Return the figure of the bias of every source before and after training."""
    from domain_embeddings.core.reporting.plots import task_variance_plot

    return task_variance_plot(geometry_scores)


def plot_relation_map(relation_vectors: Bundle, reporting: ReportingParameters, seed: int) -> Any:
    """Return the map of a sample of relation vectors, coloured by source."""
    from domain_embeddings.core.reporting.plots import relation_map

    return relation_map(relation_vectors, reporting.map_points, seed)


def plot_losses(training_history: pd.DataFrame) -> Any:
    """Return the figure of every loss component by step."""
    from domain_embeddings.core.reporting.plots import loss_curves

    return loss_curves(training_history)


def write_report(
    width_recommendation: dict[str, Any],
    truncation_scores: pd.DataFrame,
    vector_costs: pd.DataFrame,
    geometry_scores: pd.DataFrame,
    mteb_scores: pd.DataFrame,
    training_history: pd.DataFrame,
    training_report: dict[str, Any],
    relation_vectors: Bundle,
    relation_eigenspace: Bundle,
    task_variance: Bundle,
    shrinkage: Bundle,
    task_specs: list[dict[str, Any]],
    ingestion_report: dict[str, Any],
    curation_report: dict[str, Any],
    leakage_report: dict[str, Any],
    pairing_report: dict[str, Any],
    curation: CurationParameters,
    reze: RezeParameters,
    evaluation: EvaluationParameters,
    seed: int,
) -> str:
    """Return the report as one self-contained HTML document."""
    from domain_embeddings.core.reporting.html import ReportInputs, render_report

    return render_report(
        ReportInputs(
            width_recommendation=width_recommendation,
            truncation_scores=truncation_scores,
            vector_costs=vector_costs,
            geometry_scores=geometry_scores,
            mteb_scores=mteb_scores,
            training_history=training_history,
            training_report=training_report,
            relation_vectors=relation_vectors,
            relation_eigenspace=relation_eigenspace,
            task_variance=task_variance,
            shrinkage=shrinkage,
            task_specs=task_specs,
            data_reports={
                "Rows read": ingestion_report,
                "Rows dropped while cleaning": curation_report,
                "Training pairs": pairing_report,
            },
            leakage_report=leakage_report,
            leakage_policy=curation.leakage,
            settings={
                "training": training_report["settings"],
                "reze": reze.model_dump(mode="json"),
                "evaluation": evaluation.model_dump(mode="json"),
            },
            confidence=evaluation.confidence,
            seed=seed,
        )
    )


def write_model_card(
    adapted_model: Any,
    width_recommendation: dict[str, Any],
    truncation_scores: pd.DataFrame,
    training_report: dict[str, Any],
    task_specs: list[dict[str, Any]],
    shrinkage: Bundle,
    widths: list[int],
    seed: int,
) -> str:
    """Return the model card and also write it as README.md into the folder of the model.

    The side effect is wanted: whoever copies the model folder takes the card along.
    """
    from domain_embeddings.core.reporting.card import CardInputs, render_card

    card = render_card(
        CardInputs(
            width_recommendation=width_recommendation,
            truncation_scores=truncation_scores,
            training_report=training_report,
            task_specs=task_specs,
            model=shrinkage.header,
            widths=list(getattr(adapted_model, "trained_widths", widths)),
            settings=training_report["settings"],
            seed=seed,
        )
    )
    folder = getattr(adapted_model, "saved_path", None)
    if folder is None:
        logger.warning("The adapted model has no folder, so its README.md was not written")
    else:
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
    return card
