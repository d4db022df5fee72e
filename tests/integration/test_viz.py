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
import yaml
from browser import CHROMIUM, FLAGS
from kedro_project import ENVIRONMENT, KEDRO, PLACES, ROOT, FinishedRun

LAYERS = "raw intermediate primary feature model_input models model_output reporting".split()
# The pipeline `export` has not run, so its entries have no versions yet.
EXPORT = "09_export"


def entries(kind: str) -> list[str]:
    """Return the catalog entries of a type."""
    return [
        name
        for path in sorted((ROOT / "conf/base/catalog").glob("*.yml"))
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items()
        if entry["type"] == kind and name in PLACES
    ]


PLOTS = entries("plotly.JSONDataset")
PICTURES = entries("matplotlib.MatplotlibDataset")


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
    lines = [line for line in site[1].splitlines() if EXPORT not in line]
    for word in ("ERROR", "WARNING", "Traceback", "could not be previewed"):
        assert not [line for line in lines if word in line]


def test_the_layers_are_in_the_order_of_the_data(graph):
    assert [layer for layer in graph["layers"] if layer != "export"] == LAYERS


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


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_previewed_as_pictures(site, graph, name):
    shown = detail(site, graph, name)
    assert shown["preview_type"] == "ImagePreview"
    assert len(shown["preview"]) > 10_000


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


def opened(address: str, folder: Path) -> str:
    """Open an address in the browser; return the document once it has settled."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={folder}",
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
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_the_browser_draws_the_plot_of_a_clicked_entry(address, graph, tmp_path):
    [found] = [node["id"] for node in graph["nodes"] if node["name"] == "relation_map"]
    dom = opened(f"{address}?pid=__default__&sid={found}", tmp_path)
    assert "js-plotly-plot" in dom
    assert len(re.findall(r'class="trace scatter', dom)) >= 4
    assert len(re.findall(r'<path class="point"', dom)) > 50
    assert "% of the variance" in dom
    assert "t-SNE, first axis (no unit)" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_the_browser_shows_layers_nodes_and_entries(address, graph, tmp_path):
    dom = opened(address, tmp_path)
    layers = dict(re.findall(r'layer-label--(\w+)"[^>]*translateY\(([\d.]+)px', dom))
    assert sorted(layers, key=lambda name: float(layers[name])) == LAYERS
    shown = set(re.findall(r"pipeline-node__text[^>]*>([^<]+)<", dom))
    wanted = {node["name"] for node in graph["nodes"] if node["type"] in ("task", "data")}
    assert wanted <= shown
