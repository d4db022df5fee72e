"""`kedro compare` on the small project: what runs, what does not run again, what is reported."""

from __future__ import annotations

import html
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml
from browser import CHROMIUM, FLAGS
from click.testing import Result
from kedro_project import DATA, PLACES, Project, make_project

from domain_embeddings.compare import execute
from domain_embeddings.compare.execute import CellError

METHODS, SEEDS = ("mrl", "mic"), (0, 1)
COMMAND = ("compare", "--env=test", "--methods=mrl,mic", "--seeds=0,1")
CELLS = [f"{method}_{seed}" for seed in SEEDS for method in METHODS]
FOLDER = DATA / "08_reporting/comparison"


@dataclass
class InProcess:
    """Does `kedro run` in this process, which saves the seconds of starting one.

    Args:
        project: The project.
        failing: Names of runs that fail.
    """

    project: Project
    failing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, options, environment, stem: Path) -> None:
        self.done.append(stem.name)
        if stem.name in self.failing:
            raise CellError("planted")
        config = stem.with_suffix(".yml")
        config.write_text(yaml.safe_dump({"run": dict(options)}), encoding="utf-8")
        own = {key: environment[key] for key in environment if key.startswith("MLFLOW_RUN_")}
        result = self.project.command("run", f"--config={config}", **own)
        if result.exit_code:
            raise CellError(result.output[-500:])


@dataclass(frozen=True)
class Compared:
    """Two attempts at one comparison: a run of the first fails, the second goes on."""

    project: Project
    first: Result
    second: Result
    started: tuple[list[str], list[str]]

    @property
    def page(self) -> str:
        return (self.project.folder / FOLDER / "mrl-mic/comparison.html").read_text("utf-8")


def cheap(parameters):
    parameters["widths"] = [4, 8, 16]
    parameters["evaluation"] |= {"precisions": ["float32"], "bootstrap": 20}
    parameters["reporting"] = {"map_points": 20}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    project = make_project(tmp_path_factory.mktemp("compared") / "project")
    project.keep_tasks("topics", "questions")
    project.edit_yaml("parameters.yml", cheap)
    results, started = [], []
    with pytest.MonkeyPatch.context() as patch:
        for failing in (("mic_0",), ()):
            runner = InProcess(project, failing)
            patch.setattr(execute, "run_kedro", runner)
            results.append(project.command(*COMMAND))
            started.append(runner.done)
    return Compared(project, results[0], results[1], (started[0], started[1]))


def test_a_run_that_fails_does_not_stop_the_others(compared):
    assert compared.first.exit_code == 1
    assert compared.started[0] == ["upstream_0", *CELLS]
    assert "[2/4] mic, seed 0: FAILED. planted" in compared.first.output
    assert "[4/4] mic, seed 1: done" in compared.first.output
    assert "FAILED  mic, seed 0: planted" in compared.first.output
    assert "Traceback" not in compared.first.output


def test_the_same_command_runs_only_what_is_missing(compared):
    assert compared.second.exit_code == 0, compared.second.output
    assert compared.started[1] == ["mic_0"]
    assert compared.second.output.count("there already") == 1 + 3


def test_ingestion_to_reze_is_computed_once_and_read_by_all(compared):
    project = compared.project
    for name in ("task_records", "training_pairs", "relation_vectors", "shrinkage"):
        assert len(project.versions(PLACES[name])) == 1, name
    assert len(project.versions(PLACES["adapted_model"])) == len(CELLS)
    [upstream] = project.versions(PLACES["shrinkage"])
    trained = [run for run in project.mlflow_runs() if "saved.adapted_model" in run.data.tags]
    assert [run.data.tags["loaded.shrinkage"] for run in trained] == [upstream] * len(CELLS)


def test_every_setting_and_seed_is_a_run_of_mlflow_under_that_of_the_comparison(compared):
    runs = compared.project.mlflow_runs()
    [parent] = [run for run in runs if run.data.tags.get("comparison.role") == "parent"]
    assert parent.info.status == "FINISHED"
    assert parent.info.run_name == "comparison mrl-mic"
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {run.info.run_name for run in children} == {
        f"{method}, seed {seed}" for method in METHODS for seed in SEEDS
    }
    assert {(run.data.params["training.method"], run.data.params["seed"]) for run in children} == {
        (method, str(seed)) for method in METHODS for seed in SEEDS
    }
    artifacts = Path(parent.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "comparison.html").read_text("utf-8") == compared.page


def test_the_report_shows_every_run_and_the_untouched_model(compared):
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", compared.page.split("</style>")[-1]))
    assert "Seeds 0, 1: the intervals cover" in text
    assert "Missing" not in text
    for name in ("untouched", "untouched after PCA", *METHODS):
        assert name in text
    ids = {r.info.run_id for r in compared.project.mlflow_runs() if "score_dim_8" in r.data.metrics}
    assert len(ids) == len(CELLS)
    for run_id in ids:
        assert f"/runs/{run_id}" in compared.page


def test_tables_beside_the_report_hold_what_the_runs_scored(compared):
    folder = compared.project.folder / FOLDER / "mrl-mic"
    scores = pd.read_parquet(folder / "scores.parquet")
    chosen = scores[(scores["variant"] == "mic") & (scores["transform"] == "none")]
    listed = json.loads((folder / "runs.json").read_text("utf-8"))
    own = pd.concat(
        compared.project.frame(PLACES["truncation_scores"], run["version"])
        for run in listed
        if run["setting"] == "mic"
    )
    own = own[own["main"] & (own["model"] == "adapted") & (own["transform"] == "none")]
    own = own[own["precision"] == "float32"]
    expected = own.groupby(["task", "width"])["value"].mean()
    for row in chosen[chosen["width"] > 0].itertuples():
        assert row.value == pytest.approx(expected[row.task, row.width])
    assert (scores["seeds"] == 2).all()
    differences = pd.read_parquet(folder / "differences.parquet")
    assert {"untouched", "untouched after PCA", *METHODS} == {
        *differences["left"], *differences["right"]
    }  # fmt: skip


def test_runs_of_mlflow_are_compared_by_id_and_by_filter(compared, tmp_path):
    project = compared.project
    ids = {
        run.info.run_name: run.info.run_id
        for run in project.mlflow_runs()
        if "score_dim_8" in run.data.metrics
    }
    chosen = ids["mrl, seed 0"], ids["mic, seed 0"]
    result = project.command("compare", "--env=test", f"--runs={','.join(chosen)}", "--name=two")
    assert result.exit_code == 0, result.output
    by_id = (project.folder / FOLDER / "two/comparison.html").read_text("utf-8")
    assert all(f"/runs/{run_id}" in by_id for run_id in chosen)
    assert "One seed per setting" in by_id
    query = "params.training.method = 'mic'"
    result = project.command("compare", "--env=test", f"--filter={query}", "--name=filtered")
    assert result.exit_code == 0, result.output
    assert "2 runs: mic (seed 1), mic (seed 0)" in result.output.replace("seed 0), mic (seed 1", "seed 1), mic (seed 0")  # fmt: skip  # noqa: E501
    scores = [
        pd.read_parquet(project.folder / FOLDER / name / "scores.parquet")
        for name in ("mrl-mic", "filtered")
    ]
    mic = [f[f["variant"] == "mic"].reset_index(drop=True) for f in scores]
    pd.testing.assert_frame_equal(mic[0], mic[1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods=mrl,magic"], "--methods: there is no 'magic'; allowed: "),
        (["--methods=mrl", "--params=training.stepz=3"], "training.stepz: unknown parameter"),
        (["--runs=abc"], "MLflow knows no run 'abc'"),
        (["--filter=params.seed = '99'"], "no finished run"),
        (["--filter=what"], "--filter: "),
    ],
)
def test_bad_input_is_refused_before_anything_runs(compared, monkeypatch, arguments, words):
    runner = InProcess(compared.project)
    monkeypatch.setattr(execute, "run_kedro", runner)
    before = len(compared.project.mlflow_runs())
    result = compared.project.command("compare", "--env=test", *arguments)
    assert result.exit_code == 1
    assert words in result.output
    assert "Traceback" not in result.output
    assert runner.done == []
    assert len(compared.project.mlflow_runs()) == before


def test_a_failing_process_is_reported_with_its_own_words(compared):
    # A real process, whose training ends at once: that is what costs the least.
    project = compared.project
    result = project.command(
        "compare",
        "--env=test",
        "--variant=hot:training.learning_rate=1e30;training.method=plain",
        "--methods=mrl",
    )
    assert result.exit_code == 1, result.output
    assert "FAILED. Training stopped at step" in result.output
    assert "hot_0.log" in result.output
    page = (project.folder / FOLDER / "mrl-hot/comparison.html").read_text("utf-8")
    assert "Missing: hot, seed 0." in page
    failed = [run for run in project.mlflow_runs() if run.info.run_name == "hot, seed 0"]
    assert [run.info.status for run in failed] == ["FAILED"]


# -------------------------------------------------------------------------- MLflow in a browser


@pytest.fixture(scope="module")
def ui(compared) -> Iterator[str]:
    """Serve the MLflow UI on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = compared.project.start(
        sys.executable, "-m", "mlflow", "ui", "--workers=1", "--host=127.0.0.1", f"--port={port}",
        f"--backend-store-uri=sqlite:///{compared.project.folder / DATA / 'mlflow.db'}",
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while not answers(f"{address}/health"):
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.communicate()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310
            return answer.status == 200
    except OSError:
        return False


def text_of(address: str, folder: Path) -> str:
    """Load a page and return what it shows, one line per element."""
    command = [
        str(CHROMIUM),
        *FLAGS,
        f"--user-data-dir={folder}",
        "--window-size=1600,1500",
        "--virtual-time-budget=60000",
        "--dump-dom",
        address,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    dom = re.sub(r"<(script|style).*?</\1>", "", done.stdout, flags=re.DOTALL)
    return "\n".join(html.unescape(re.sub(r"<[^>]+>", "\n", dom)).split("\n"))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_the_ui_of_mlflow_compares_the_runs_that_the_report_links_to(compared, ui, tmp_path):
    links = re.findall(
        r'href="(http://127.0.0.1:5000/#/(?:compare-runs|metric)[^"]*)"', compared.page
    )
    side_by_side, overlaid = (
        text_of(html.unescape(link).replace("http://127.0.0.1:5000", ui), tmp_path / str(k))
        for k, link in enumerate(links)
    )
    lines = set(side_by_side.split("\n"))
    assert "Comparing 4 Runs from 1 Experiment" in lines
    for run in compared.project.mlflow_runs():
        if "score_dim_8" in run.data.metrics:
            assert run.info.run_name in lines
            assert f"{run.data.metrics['score_dim_8']:.3f}".rstrip("0") in lines
    assert {"training.method", "training.rotation.when", "seed", "mrl", "mic"} <= lines
    assert {"score_dim_4", "score_dim_8", "score_dim_16", "score_by_width/mean"} <= lines
    for method in METHODS:
        for seed in SEEDS:
            assert f"{method}, seed {seed} (score_by_width/mean)" in overlaid
