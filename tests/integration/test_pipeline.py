"""The whole graph on made-up data: what a run leaves behind, repeats, resumes and tracks."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from kedro.config import OmegaConfigLoader
from kedro_project import DATA, KEDRO, PLACES, FinishedRun, Project, make_project
from tracking_server import tracking_server

from domain_embeddings import hooks

KEY = ["model", "method", "transform", "precision", "task", "width", "metric", "seed"]
WIDTHS = [4, 8, 16, 32]


SCORES = PLACES["truncation_scores"]
HISTORY = PLACES["training_history"]
PAIRS = PLACES["training_pairs"]
MODEL = PLACES["adapted_model"]
REPORT = PLACES["adaptation_report"]
SHRINKAGE = PLACES["shrinkage"]


@pytest.fixture
def project(finished: FinishedRun, tmp_path: Path) -> Project:
    """Return a copy of the finished run that a test may run again."""
    return finished.project.copy(tmp_path / "project")


# ------------------------------------------------------------------------- what a run leaves


@pytest.mark.parametrize("name", PLACES)
def test_every_output_lies_under_its_layer_with_the_version_of_the_run(finished, name):
    place = PLACES[name]
    assert finished.project.versions(place) == [finished.version]
    assert finished.project.path(place, finished.version).exists()


def test_no_unfinished_file_is_left(finished):
    names = [path.name for path in (finished.project.folder / DATA).rglob("*")]
    assert [name for name in names if "partial" in name or name.endswith(".old")] == []


def test_nothing_is_pickled(finished):
    suffixes = {p.suffix for p in (finished.project.folder / DATA).rglob("*") if p.is_file()}
    assert suffixes & {".pkl", ".pickle", ".pt", ".bin", ".joblib"} == set()


def test_scores_are_tidy_and_unique(finished):
    scores = finished.project.frame(SCORES, finished.version)
    assert not scores.duplicated(KEY).any()
    assert sorted(scores["width"].unique()) == WIDTHS
    own = scores[scores["model"].isin(["reference", "adapted"])]
    assert set(own["task"]) == {
        *("topics", "questions", "duplicates", "similar", "groups", "mean"),
        *("everyday", "general_mean"),
    }
    assert np.isfinite(own["value"]).all()
    assert (
        own.groupby(["model", "transform", "precision", "task"])["main"].sum() == len(WIDTHS)
    ).all()


def test_the_model_loads_in_plain_sentence_transformers_and_names_its_widths(finished):
    from sentence_transformers import SentenceTransformer

    folder = finished.project.path(MODEL, finished.version)
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(["lost card", "river fish"])
    assert vectors.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    config = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    assert config["trained_widths"] == WIDTHS
    card = (folder / "README.md").read_text(encoding="utf-8")
    entry = finished.project.path(PLACES["model_card"], finished.version)
    assert card == entry.read_text(encoding="utf-8")
    assert all(str(width) in card for width in WIDTHS)


def test_training_changed_the_model(finished):
    folders = (finished.project.folder / "tests/fixtures/model", finished.project.path(MODEL, finished.version))  # fmt: skip  # noqa: E501
    first, second = ((f / "model.safetensors").read_bytes() for f in folders)
    assert first != second


def test_reze_finds_the_source_with_the_planted_bias(finished):
    from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset

    path = finished.project.path(PLACES["relation_vectors"], finished.version)
    bundle = MemmapBundleDataset(filepath=str(path)).load()
    sources = bundle.header["sources"]
    frame = pd.DataFrame(np.asarray(bundle["vectors"], dtype=np.float64))
    means = frame.groupby(np.asarray(bundle["source"])).mean()
    distance = np.linalg.norm(means - means.median(), axis=1)
    assert sources[int(distance.argmax())] == "board"
    logged = re.findall(r"Source '(\w+)' is shrunk in (\d+) of", finished.result.output)
    shrunk = {name: int(count) for name, count in logged}
    assert shrunk["board"] == max(shrunk.values()) > 0


def test_the_console_ends_with_the_answer_and_the_places_to_look(finished):
    tail = finished.result.output[finished.result.output.index("per million") :]
    assert re.search(r"^> +\d+ +\d+ MB", tail, re.MULTILINE)
    report = finished.project.path(REPORT, finished.version)
    assert f"report  {report}" in tail
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")
    assert f"model   {finished.project.path(MODEL, finished.version)}" in tail
    assert tail.rstrip().endswith("lineage make viz")
    assert "http://127.0.0.1:5000" in tail


def test_the_console_shows_neither_tracebacks_nor_advice_to_plugin_authors(finished):
    for noise in ("Traceback", "type hints", "km.random_name", "DeprecationWarning"):
        assert noise not in finished.result.output


# -------------------------------------------------------------------------------- repeating


def test_two_runs_in_one_process_load_their_own_versions_and_agree_to_the_bit(finished, project):
    result = project.run()
    assert result.exit_code == 0, result.output
    first, second = project.versions(SCORES)
    assert first == finished.version
    pd.testing.assert_frame_equal(
        project.frame(SCORES, first), project.frame(SCORES, second), check_exact=True
    )
    weights = [project.path(MODEL, v) / "model.safetensors" for v in (first, second)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    *_, run = project.mlflow_runs()
    touched = {k: v for k, v in run.data.tags.items() if k.startswith(("loaded.", "saved."))}
    assert {name.partition(".")[2] for name in touched} == set(PLACES)
    assert set(touched.values()) == {second}


def test_a_stage_runs_again_from_persisted_data(finished, project):
    result = project.run("--pipelines=reze", "--params=reze.eta=0.2")
    assert result.exit_code == 0, result.output
    first, second = project.versions(SHRINKAGE)
    from domain_embeddings.datasets.safetensors_bundle import SafetensorsBundleDataset as Data

    bundles = [Data(filepath=str(project.path(SHRINKAGE, v))).load() for v in (first, second)]
    assert bundles[0].header["eta"] != 0.2
    assert bundles[1].header["eta"] == 0.2
    assert project.versions(PAIRS) == [finished.version]
    result = project.run("--from-nodes=plot_spectrum")
    assert result.exit_code == 0, result.output
    *_, run = project.mlflow_runs()
    assert run.data.tags["loaded.shrinkage"] == second


def test_named_versions_give_the_metrics_of_the_run_that_made_them(finished, project):
    result = project.run("--pipelines=training,evaluation", "--params=training.steps=1")
    assert result.exit_code == 0, result.output
    result = project.run("--nodes=embed_adapted,fit_quantisation,score", f"--load-versions=adapted_model:{finished.version}")  # fmt: skip  # noqa: E501
    assert result.exit_code == 0, result.output
    first, other, again = (project.frame(SCORES, v) for v in project.versions(SCORES))
    assert not first["value"].equals(other["value"])
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    *_, run = project.mlflow_runs()
    assert run.data.tags["loaded.adapted_model"] == finished.version


def test_one_parameter_given_at_run_time_leaves_its_siblings(finished, project):
    result = project.run("--pipelines=ingestion", "--params=training.alpha=0.123")
    assert result.exit_code == 0, result.output
    before, after = (run.data.params for run in project.mlflow_runs())
    changed = {key: after[key] for key in after if after[key] != before[key]}
    assert before.keys() == after.keys()
    assert changed == {"training.alpha": "0.123"}


# ----------------------------------------------------------------------- failing and resuming


def test_a_run_that_failed_in_training_is_resumed_as_kedro_suggests(finished, tmp_path):
    project = make_project(tmp_path / "project")
    result = project.run("--params=training.learning_rate=1e30")
    assert result.exit_code == 1
    assert "Error: Training stopped at step" in result.output
    [failed] = project.mlflow_runs()
    assert failed.info.status == "FAILED"
    assert failed.data.tags["error"].startswith("Training stopped at step")
    [kept] = project.versions(SHRINKAGE)
    assert project.versions(MODEL) == []
    suggestion = re.search(r'--from-nodes "([^"]+)"', result.output)
    assert suggestion is not None
    result = project.run(f"--from-nodes={suggestion[1]}")
    assert result.exit_code == 0, result.output
    assert project.versions(SHRINKAGE) == [kept]
    [version] = project.versions(SCORES)
    pd.testing.assert_frame_equal(
        project.frame(SCORES, version),
        finished.project.frame(SCORES, finished.version),
        check_exact=True,
    )
    assert [run.info.status for run in project.mlflow_runs()] == ["FAILED", "FINISHED"]


def test_a_run_killed_in_training_goes_on_from_its_checkpoint_to_the_same_model(finished, tmp_path):
    options = "training.steps=60,training.checkpoints.every=2"
    whole, project = (finished.project.copy(tmp_path / name) for name in ("whole", "killed"))
    arguments = ["--from-nodes=train_model", "--to-nodes=train_model"]
    result = whole.run(*arguments, f"--params={options},training.checkpoints.every=null")
    assert result.exit_code == 0, result.output
    root = project.folder / DATA / "06_models/checkpoints"
    process = project.start(KEDRO, "run", "--env=test", *arguments, f"--params={options}")
    try:
        deadline = time.monotonic() + 120
        while not any(root.glob("*/step-*[0-9]")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert project.versions(MODEL) == [finished.version]
    result = project.run(*arguments, f"--params={options}")
    assert result.exit_code == 0, result.output
    report, first = (
        json.loads(p.path(PLACES["training_report"], p.versions(MODEL)[-1]).read_text("utf-8"))
        for p in (project, whole)
    )
    assert report["resumed_from_step"] > 0 == first["resumed_from_step"]
    weights, history = (
        [read(p, p.versions(MODEL)[-1]) for p in (project, whole)]
        for read in (
            lambda p, v: (p.path(MODEL, v) / "model.safetensors").read_bytes(),
            lambda p, v: p.frame(HISTORY, v),
        )
    )
    assert weights[0] == weights[1]
    pd.testing.assert_frame_equal(*history, check_exact=True)
    # All of it is in the catalog, so nothing is left to resume.
    assert list(root.iterdir()) == []


# ---------------------------------------------------------------------------------- tracking


def test_a_run_of_kedro_is_one_finished_run_of_mlflow(finished):
    [run] = finished.project.mlflow_runs()
    assert run.info.status == "FINISHED"


def test_parameters_are_tracked_flat_and_short(finished):
    from domain_embeddings.hooks import flatten
    from domain_embeddings.parameters import check_parameters
    from domain_embeddings.settings import CONFIG_LOADER_ARGS

    folder = str(finished.project.folder / "conf")
    config = OmegaConfigLoader(folder, env="test", **CONFIG_LOADER_ARGS)
    expected = flatten(check_parameters(config["parameters"]).model_dump(mode="json"))
    [run] = finished.project.mlflow_runs()
    assert run.data.params == {name: str(value) for name, value in expected.items()}
    assert run.data.params["training.steps"] == "3"
    assert run.data.params["evaluation.clustering.documents"] == "64"
    assert max(len(value) for value in run.data.params.values()) < 60
    assert not any("{" in value for value in run.data.params.values())


def test_scores_are_tracked_by_name_and_as_a_series_over_widths(finished):
    from mlflow import MlflowClient

    [run] = finished.project.mlflow_runs()
    client = MlflowClient(f"sqlite:///{finished.project.folder / DATA / 'mlflow.db'}")
    scores = finished.project.frame(SCORES, finished.version)
    scores = scores[scores["precision"] == "float32"]
    rows = scores[scores["main"] & (scores["transform"] == "none") & (scores["task"] == "mean")]
    expected = rows[rows["model"] == "adapted"].set_index("width")["value"].to_dict()
    series = client.get_metric_history(run.info.run_id, "score_by_width/mean")
    assert {point.step: point.value for point in series} == pytest.approx(expected)
    named = {width: run.data.metrics[f"score_dim_{width}"] for width in WIDTHS}
    assert named == pytest.approx(expected)


def test_no_two_figures_share_a_name_and_a_step(finished):
    from domain_embeddings.hooks import score_metrics

    figures = list(score_metrics(finished.project.frame(SCORES, finished.version)))
    keys = [(name, step) for name, _, step in figures]
    assert len(keys) == len(set(keys)) > 100


def test_training_is_tracked_by_step_and_with_its_cost(finished):
    from mlflow import MlflowClient

    [run] = finished.project.mlflow_runs()
    client = MlflowClient(f"sqlite:///{finished.project.folder / DATA / 'mlflow.db'}")
    for component in ("loss", "info_nce", "reze", "learning_rate"):
        points = client.get_metric_history(run.info.run_id, f"train/{component}")
        assert [point.step for point in points] == [1, 2, 3]
    assert run.data.metrics["peak_memory_mib"] > 100
    assert run.data.metrics["wall_seconds"] > 0
    assert run.data.metrics["training/pairs_per_s"] > 0


def test_versions_and_artifacts_of_the_run_are_tracked(finished):
    [run] = finished.project.mlflow_runs()
    assert run.data.tags["saved.adapted_model"] == finished.version
    assert run.data.tags["loaded.shrinkage"] == finished.version
    assert run.data.tags["version.torch"]
    assert run.data.tags["git_commit"]
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    assert folder.is_relative_to(finished.project.folder)
    names = {path.name for path in folder.iterdir()}
    assert {"adaptation_report.html", "truncation_scores.parquet", "model_card.md"} <= names
    report = finished.project.path(REPORT, finished.version)
    assert (folder / report.name).read_bytes() == report.read_bytes()


def test_a_tracking_server_that_is_down_costs_a_warning_only(finished, tmp_path):
    project = make_project(tmp_path / "project")

    def unreachable(content):
        content["server"]["mlflow_tracking_uri"] = "http://127.0.0.1:9"

    project.edit_yaml("mlflow.yml", unreachable)
    started = time.monotonic()
    result = project.run("--to-nodes=train_model")
    assert result.exit_code == 0, result.output
    assert time.monotonic() - started < 60
    assert "This run is not tracked; its figures are kept in the catalog." in result.output
    assert len(re.findall(r"MLflow failed in", result.output)) == 1
    assert "Traceback" not in result.output
    [version] = project.versions(HISTORY)
    history, expected = (
        p.frame(HISTORY, p.versions(HISTORY)[0]) for p in (project, finished.project)
    )
    pd.testing.assert_frame_equal(history, expected, check_exact=True)
    assert (project.path(MODEL, version) / "model.safetensors").is_file()


def test_a_server_that_goes_down_during_a_run_is_given_up(project, monkeypatch):
    import mlflow

    calls = []

    def down(*arguments, **_):
        calls.append(arguments)
        raise ConnectionError("the server went away")

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", down)
    monkeypatch.setattr(mlflow, "set_tag", down)
    result = project.run("--pipelines=reze")
    assert result.exit_code == 0, result.output
    assert "MLflow is not asked again; the figures are kept in the catalog." in result.output
    assert len(project.versions(SHRINKAGE)) == 2
    assert mlflow.active_run() is None


@pytest.mark.parametrize(
    ("healthy", "then"), [(0, "hang"), (8, "hang"), (0, "fail"), (8, "fail"), (0, "slow")]
)
def test_a_tracking_server_that_hangs_or_fails_stops_and_costs_nothing(
    project, monkeypatch, healthy, then
):
    import mlflow

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(hooks, "HUNG_SECONDS", 0.5)
    if then == "slow":
        monkeypatch.setattr(hooks, "MAX_SECONDS", 1.0)
    with tracking_server(healthy, then, seconds=0.4) as server:
        project.edit_yaml(
            "mlflow.yml", lambda content: content["server"].update(mlflow_tracking_uri=server.uri)
        )
        result = project.run("--pipelines=reze")
    assert result.exit_code == 0, result.output
    assert "Traceback" not in result.output
    assert "kept in the catalog" in result.output
    assert len(project.versions(SHRINKAGE)) == 2
    assert mlflow.active_run() is None
    # Once given up, it is asked once more at most, to close the run. Opening a run takes several
    # requests, so a server that is only slow gets them all.
    allowed = {"hang": 2, "fail": 3 + 1, "slow": 12}
    assert 1 <= len(server.asked) - healthy <= allowed[then], server.asked


# ------------------------------------------------------------------------ the gate at the end


def plant_general_drop(project, drop):
    """Store scores as if the adapted model had lost that much on general text."""
    [version] = project.versions(SCORES)
    path = project.path(SCORES, version)
    scores = pd.read_parquet(path)
    rows = scores["general"] & (scores["model"] == "adapted_minus_reference")
    scores.loc[rows, ["value", "low", "high"]] = (-drop, -drop - 0.01, -drop + 0.01)
    scores.loc[rows & scores["p"].notna(), ["p", "p_holm"]] = 0.001
    scores.to_parquet(path)


def test_a_planted_drop_of_general_quality_fails_the_run_after_everything_is_saved(project):
    plant_general_drop(project, 0.3)
    result = project.run("--pipelines=reporting", "--params=evaluation.max_general_drop=0.1")
    assert result.exit_code == 1
    assert "General quality dropped too far: -30.0 points ([-31.0, -29.0]" in result.output
    assert "evaluation.max_general_drop allows 10.0 points" in result.output
    assert "Traceback" not in result.output
    # The closing table is printed all the same, and every entry of the stage is there.
    assert "General text lost: over 1 general task" in result.output
    for entry in ("width_recommendation", "adaptation_report", "model_card", "loss_curves"):
        assert len(project.versions(PLACES[entry])) == 2, entry
    failed = project.mlflow_runs()[-1]
    assert failed.info.status == "FAILED"
    assert "General quality dropped too far" in failed.data.tags["error"]
    assert failed.data.tags["saved.adaptation_report"]
    allowed = project.run("--pipelines=reporting", "--params=evaluation.max_general_drop=0.4")
    assert allowed.exit_code == 0, allowed.output


def test_a_gate_without_a_general_task_is_refused_before_the_first_node(tmp_path):
    project = make_project(tmp_path / "project")
    project.keep_tasks("topics", "questions")
    result = project.run("--params=evaluation.max_general_drop=0.1")
    assert result.exit_code == 1
    assert "evaluation.max_general_drop: no task is evaluated as general text" in result.output
    assert project.versions(PLACES["task_records"]) == []


# -------------------------------------------------------------------------- what stays apart


def test_a_test_run_stays_in_its_own_folder(finished):
    with contextlib.chdir(finished.project.folder):
        found = {path.name for path in Path().iterdir()}
    assert found <= {"conf", "data", "src", "tests", "pyproject.toml", ".telemetry", ".viz"}
    assert [path.name for path in (finished.project.folder / "data").iterdir()] == ["test"]
