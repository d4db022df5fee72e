from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import pytest
import report_data
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from domain_embeddings.parameters import (
    CurationParameters,
    EvaluationParameters,
    ReportingParameters,
    RezeParameters,
)
from domain_embeddings.pipelines.reporting import nodes
from domain_embeddings.pipelines.reporting.pipeline import create_pipeline

OUTPUTS = {
    "width_recommendation",
    "quality_by_dimension",
    "quality_picture",
    "quality_by_bytes",
    "eigen_spectrum",
    "task_variance_plot",
    "relation_map",
    "loss_curves",
    "adaptation_report",
    "model_card",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    """Outputs of the whole stage on made-up data, and the folder of the model."""
    folder = tmp_path_factory.mktemp("adapted_model")
    model = SimpleNamespace(saved_path=str(folder), trained_widths=report_data.WIDTHS)
    entries = report_data.report_inputs() | {
        "adapted_model": model,
        "params:curation": CurationParameters(),
        "params:evaluation": EvaluationParameters(),
        "params:reporting": ReportingParameters(map_points=40, tolerance=0.01),
        "params:reze": RezeParameters(),
        "params:seed": 0,
        "params:widths": report_data.WIDTHS,
    }
    assert set(entries) == create_pipeline().inputs()
    catalog = DataCatalog(
        {name: MemoryDataset(value, copy_mode="assign") for name, value in entries.items()}
    )
    # The gate is the only reader of report and card; without it they stay in memory.
    gate = create_pipeline().only_nodes("check_retention")
    outputs = SequentialRunner().run(create_pipeline() - gate, catalog)
    return {name: dataset.load() for name, dataset in outputs.items()}, folder


def test_the_stage_makes_every_output_of_the_reporting_layer(run):
    outputs, _ = run
    assert set(outputs) == OUTPUTS - {"width_recommendation"}
    assert create_pipeline().all_outputs() == OUTPUTS


def test_report_card_and_figures_agree_on_the_answer(run):
    outputs, _ = run
    assert "Ship width 128" in outputs["adaptation_report"]
    assert "Ship width 128" in outputs["model_card"]
    assert outputs["quality_by_dimension"].layout.title.text == "Quality by dimension"
    points = sum(len(trace.x) for trace in outputs["relation_map"].data)
    assert 0 < points <= 2 * 40


def test_the_card_travels_in_the_folder_of_the_model(run):
    outputs, folder = run
    assert (folder / "README.md").read_text(encoding="utf-8") == outputs["model_card"]


def test_a_model_without_a_folder_is_named_in_a_warning(caplog):
    scores = report_data.truncation_scores()
    answer = nodes.recommend(scores, ReportingParameters(tolerance=0.01), report_data.WIDTHS)
    card = nodes.write_model_card(
        SimpleNamespace(),
        answer,
        scores,
        report_data.training_report(),
        report_data.task_specs(),
        report_data.shrinkage(),
        report_data.WIDTHS,
        0,
    )
    assert "Ship width 128" in card
    assert "README.md was not written" in caplog.text


def test_the_quality_floor_reaches_the_recommendation():
    scores = report_data.truncation_scores()
    answer = nodes.recommend(scores, ReportingParameters(quality_floor=0.9), report_data.WIDTHS)
    assert answer["recommended_width"] == 16


def test_the_annotations_that_kedro_validates_parameters_with_resolve():
    hints = get_type_hints(nodes.write_report)
    assert hints["reze"] is RezeParameters
    assert get_type_hints(nodes.recommend)["reporting"] is ReportingParameters


def test_importing_the_pipeline_imports_nothing_heavy():
    code = (
        "import sys; import domain_embeddings.pipelines.reporting.pipeline; "
        "print([m for m in ('torch', 'plotly', 'matplotlib', 'sklearn', 'jinja2', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = eval(done.stdout)  # noqa: S307 - the output of the line above
    assert [name for name in heavy if name != "jinja2"] == []  # kedro itself may load jinja2
