"""The lineage page of a finished run, built offline and opened in a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, FLAGS
from kedro_project import ENVIRONMENT, KEDRO, PLACES, FinishedRun

LAYERS = "raw intermediate primary feature model_input models model_output reporting".split()
PLOTS = ("quality_by_dimension", "eigen_spectrum", "task_variance_plot", "relation_map", "loss_curves")  # fmt: skip  # noqa: E501


@pytest.fixture(scope="module")
def site(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder that `kedro viz build` makes, and what it printed."""
    project = finished.project.copy(tmp_path_factory.mktemp("viz") / "project")
    result = subprocess.run(
        [KEDRO, "viz", "build", "--include-previews"],
        cwd=project.folder,
        env={**os.environ, **ENVIRONMENT, "KEDRO_ENV": "test"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = result.stdout + result.stderr
    assert (project.folder / "build/api/main").is_file(), output
    return project.folder / "build", output


@pytest.fixture(scope="module")
def graph(site: tuple[Path, str]) -> dict[str, Any]:
    graph: dict[str, Any] = json.loads((site[0] / "api/main").read_text(encoding="utf-8"))
    return graph


def detail(site: tuple[Path, str], graph: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what the page shows when a node is clicked."""
    [found] = [node["id"] for node in graph["nodes"] if node["name"] == name]
    shown: dict[str, Any] = json.loads((site[0] / "api/nodes" / found).read_text(encoding="utf-8"))
    return shown


def test_the_page_is_built_without_errors_or_warnings(site):
    for word in ("ERROR", "WARNING", "Traceback", "could not be previewed"):
        assert word not in site[1]


def test_the_layers_are_in_the_order_of_the_data(graph):
    assert graph["layers"] == LAYERS


def test_every_entry_and_node_is_in_the_graph(graph):
    from domain_embeddings.pipeline_registry import register_pipelines

    names = {node["name"] for node in graph["nodes"] if node["type"] in ("task", "data")}
    whole = register_pipelines()["domain_adapt"]
    assert names == {*PLACES, "raw_tasks", "reference_model", *(node.name for node in whole.nodes)}


@pytest.mark.parametrize("name", PLOTS)
def test_plots_are_previewed_as_plots(site, graph, name):
    shown = detail(site, graph, name)
    assert shown["preview_type"] == "PlotlyPreview"
    assert len(shown["preview"]["data"]) > 0


@pytest.mark.parametrize("name", ["training_pairs", "truncation_scores", "curated_records"])
def test_tables_are_previewed_with_their_columns_and_some_rows(site, graph, name):
    shown = detail(site, graph, name)
    assert shown["preview_type"] == "TablePreview"
    rows = shown["preview"]["data"]
    assert 5 <= len(rows) <= 20
    assert {len(row) for row in rows} == {len(shown["preview"]["columns"])}


@pytest.mark.parametrize("name", ["shrinkage", "relation_vectors", "width_recommendation"])
def test_bundles_and_reports_are_previewed_as_text(site, graph, name):
    shown = detail(site, graph, name)
    assert shown["preview_type"] == "JSONPreview"
    assert json.loads(shown["preview"])


@pytest.fixture(scope="module")
def address(site: tuple[Path, str]) -> Iterator[str]:
    """Serve the page on this machine."""
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=site[0],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = re.search(r"port (\d+)", server.stdout.readline())
        assert port is not None
        yield f"http://127.0.0.1:{port[1]}/"
    finally:
        server.kill()
        server.communicate()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_the_browser_shows_layers_nodes_and_entries(address, graph, tmp_path):
    done = subprocess.run(
        [
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={tmp_path}",
            "--window-size=1800,1400",
            "--virtual-time-budget=15000",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    layers = dict(re.findall(r'layer-label--(\w+)"[^>]*translateY\(([\d.]+)px', done.stdout))
    assert sorted(layers, key=lambda name: float(layers[name])) == LAYERS
    shown = set(re.findall(r"pipeline-node__text[^>]*>([^<]+)<", done.stdout))
    wanted = {node["name"] for node in graph["nodes"] if node["type"] in ("task", "data")}
    assert wanted <= shown
