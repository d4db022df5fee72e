"""What `kedro run --pipelines=export` ships, and whether strangers can use it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from kedro_project import DATA, PLACES, FinishedRun, Project, places

from domain_embeddings.core.encoders.prefix import prefix

EXPORTS = places("export")
WIDTHS = [8, 32]
TEXTS = ["lost card", "river fish tree", "open the account " * 30, "x"]


@pytest.fixture(scope="module")
def shipped(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Ship two widths of the finished run, with a corpus of our own."""
    project = finished.project.copy(tmp_path_factory.mktemp("shipped") / "project")
    corpus = project.folder / "corpus.jsonl"
    rows = [{"id": f"text {i}", "text": text} for i, text in enumerate([*TEXTS, ""])]
    corpus.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    def name_corpus(catalog):
        catalog["export_corpus"] = {
            "type": "domain_embeddings.datasets.corpus.CorpusDataset",
            "filepath": str(corpus),
            "metadata": {"kedro-viz": {"layer": "raw"}},
        }

    project.edit_yaml("catalog/raw.yml", name_corpus)
    chosen = {"widths": WIDTHS, "precision": "int8"}
    project.edit_yaml("parameters.yml", lambda parameters: parameters.update(export=chosen))
    result = project.run("--pipelines=export")
    assert result.exit_code == 0, result.output
    return project


def latest(project: Project, name: str) -> Path:
    [*_, version] = project.versions(EXPORTS[name])
    return project.path(EXPORTS[name], version)


def report(project: Project) -> dict:
    return json.loads(latest(project, "export_report").read_text("utf-8"))


def full_vectors(finished: FinishedRun) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    folder = finished.project.path(PLACES["adapted_model"], finished.version)
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def test_every_width_loads_in_plain_sentence_transformers(finished, shipped):
    from sentence_transformers import SentenceTransformer

    full = full_vectors(finished)
    for width in WIDTHS:
        folder = latest(shipped, "exported_models") / f"dim_{width}"
        found = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(found, prefix(full, width), atol=1e-6)


def test_the_onnx_graphs_give_the_same_vectors(finished, shipped):
    from domain_embeddings.core.export.onnx import OnnxEncoder

    full = full_vectors(finished)
    for width in WIDTHS:
        encoder = OnnxEncoder(latest(shipped, "onnx_models") / f"dim_{width}")
        np.testing.assert_allclose(encoder.encode(TEXTS), prefix(full, width), atol=1e-4)


def test_the_index_finds_every_text_by_its_own_vector(finished, shipped):
    from domain_embeddings.core.export.index import VectorIndex

    full = full_vectors(finished)
    for width in WIDTHS:
        index = VectorIndex(latest(shipped, "corpus_index") / f"dim_{width}")
        ids, scores = index.search(prefix(full, width), 2)
        assert list(ids[:, 0]) == [f"text {i}" for i in range(len(TEXTS))]
        np.testing.assert_allclose(scores[:, 0], 1, atol=0.1)


def test_the_report_says_where_how_large_and_what_was_checked(shipped):
    found = report(shipped)
    assert found["widths"] == WIDTHS
    for name in EXPORTS:
        if name == "export_report":
            continue
        folder = shipped.folder / found[name]["folder"]
        files = [p for p in folder.rglob("*") if p.is_file() and p != folder / "manifest.json"]
        assert found[name]["bytes"] == sum(p.stat().st_size for p in files) > 0
        assert found[name]["seconds"] >= 0
    checks = found["onnx_models"]["widths"].values()
    assert all(0 <= check["max_abs_difference"] <= 1e-4 for check in checks)
    assert all(check["shortest"] < check["longest"] for check in checks)
    corpus = found["corpus_embeddings"]
    assert corpus["source"].endswith("corpus.jsonl")
    assert (corpus["documents"], corpus["truncated"]) == (4, 1)
    assert corpus["dropped"] == {"empty text": 1}


def test_nothing_shipped_is_pickled_or_half_written(shipped):
    found = [p for p in (shipped.folder / DATA / "09_export").rglob("*") if p.is_file()]
    assert {p.suffix for p in found} & {".pkl", ".pickle", ".pt", ".bin", ".joblib"} == set()
    assert [p for p in found if "partial" in str(p)] == []


def test_the_models_are_logged_with_the_run(shipped):
    import mlflow

    *_, run = shipped.mlflow_runs()
    assert run.info.status == "FINISHED"
    uri = f"sqlite:///{shipped.folder / DATA / 'mlflow.db'}"
    logged = mlflow.MlflowClient(uri).search_logged_models([run.info.experiment_id])
    assert sorted(model.name for model in logged) == ["embeddings_dim_32", "embeddings_dim_8"]
    assert {model.source_run_id for model in logged} == {run.info.run_id}
    [small] = [model for model in logged if model.name.endswith("_8")]
    place = small.artifact_location.removeprefix("file://")
    info = mlflow.models.get_model_info(place)
    assert info.signature.outputs.inputs[0].shape == (-1, 8)
    assert info.saved_input_example_info is not None
    loaded = mlflow.pyfunc.load_model(place)
    assert np.asarray(loaded.predict(TEXTS)).shape == (len(TEXTS), 8)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(url: str, content: dict) -> dict:
    body = json.dumps(content).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        return json.load(answer)


def wait_until_up(server: subprocess.Popen, url: str, log: Path) -> None:
    deadline = time.monotonic() + 240
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/ping", timeout=5):  # noqa: S310
                return
        except OSError:
            time.sleep(0.5)


def test_a_served_model_answers_with_the_vectors_of_its_folder(finished, shipped, tmp_path):
    model = latest(shipped, "mlflow_models") / "dim_8"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(model)]
    options = ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, *options, "--workers", "1"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            start_new_session=True,
        )
    try:
        wait_until_up(server, url, log)
        answer = post(f"{url}/invocations", {"inputs": TEXTS})
        found = np.array(answer["predictions"])
        np.testing.assert_allclose(found, prefix(full_vectors(finished), 8), atol=1e-5)
        example = json.loads((model / "serving_input_example.json").read_text("utf-8"))
        assert np.array(post(f"{url}/invocations", example)["predictions"]).shape == (2, 8)
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(f"{url}/invocations", {"wrong": TEXTS})
        assert refused.value.code == 400
    finally:
        stop(server)


def stop(server: subprocess.Popen) -> None:
    """End the server and the processes it has started: all of its own session."""
    import signal

    try:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


# ---------------------------------------------------------------------------------- left out


def test_what_is_switched_off_is_left_out_and_the_report_says_so(finished, tmp_path):
    project = finished.project.copy(tmp_path / "project")
    off = "export.onnx=false,export.mlflow=false,export.index=null"
    result = project.run("--pipelines=export", f"--params={off}")
    assert result.exit_code == 0, result.output
    tail = result.output[result.output.index("Shipped at width") :]
    assert re.search(r"^exported_models +\d+ kB  /.*/exported_models$", tail, re.MULTILINE)
    assert re.search(r"^onnx_models +left out \(export.onnx: false\)$", tail, re.MULTILINE)
    found = report(project)
    recommended = project.path(PLACES["width_recommendation"], finished.version)
    answer = json.loads(recommended.read_text("utf-8"))
    assert found["widths"] == [answer["recommended_width"]]
    assert found["onnx_models"]["skipped"] == "export.onnx: false"
    assert found["mlflow_models"]["skipped"] == "export.mlflow: false"
    assert found["corpus_index"]["skipped"] == "export.index: null"
    assert found["corpus_embeddings"]["source"] == "evaluated tasks"
    assert found["corpus_embeddings"]["documents"] > 5


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("export.widths=[64]", "export.widths: [64] wider than the model; allowed: recommended"),
        ("export.widths=[5],export.precision=int8", "int8 has no calibrated ranges at width 5"),
        ("export.index=usearch", "export.index: Input should be 'faiss'"),
        ("export.onxn=true", "export.onxn: unknown parameter; allowed: widths"),
    ],
)
def test_what_cannot_be_shipped_is_refused_before_anything_is_written(
    finished, tmp_path, params, message
):
    project = finished.project.copy(tmp_path / "project")
    result = project.run("--pipelines=export", f"--params={params}")
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output
    assert not any(project.versions(place) for place in EXPORTS.values())


def test_a_corpus_that_is_not_there_is_named(finished, tmp_path):
    project = finished.project.copy(tmp_path / "project")
    entry = {"type": "domain_embeddings.datasets.corpus.CorpusDataset", "filepath": "gone.jsonl"}
    project.edit_yaml("catalog/raw.yml", lambda c: c.update(export_corpus=entry))
    result = project.run("--pipelines=export")
    assert result.exit_code == 1
    assert "export_corpus.filepath: there is no file" in result.output
    assert project.versions(EXPORTS["exported_models"]) == []
