"""Bad input through the command line: one message that says what, where and what is allowed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from kedro_project import DATA, KEDRO, PLACES, Project, make_project

from domain_embeddings.cli import explain
from domain_embeddings.core.errors import DataError

Break = Callable[[Project], None]
TASKS = "tests/fixtures/tasks"


def only(output: str) -> str:
    """Return the one error message of an output, which has no traceback anywhere."""
    assert "Traceback" not in output
    assert not re.search(r'File ".*", line \d+', output)
    assert output.count("Error: ") == 1, output
    return output.partition("Error: ")[2].strip()


def refused(project: Project, *arguments: str) -> str:
    """Run, expect a refusal before training, and return its message."""
    result = project.run(*arguments)
    # An exception that click does not handle would also make the exit code 1.
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code != 0
    assert project.versions(PLACES["adapted_model"]) == []
    return only(result.output)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of MLflow with its tables, which take seconds to create."""
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def project(tmp_path: Path, database: Path) -> Project:
    made = make_project(tmp_path / "project")
    (made.folder / DATA).mkdir(parents=True)
    shutil.copy(database, made.folder / DATA)
    return made


def write(name: str, text: str) -> Break:
    return lambda project: project.task_file(name).write_text(text, encoding="utf-8") and None


def append(name: str, text: str) -> Break:
    def apply(project: Project) -> None:
        path = project.task_file(name)
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    return apply


def without_column(name: str, column: str) -> Break:
    def apply(project: Project) -> None:
        path = project.task_file(name)
        pd.read_csv(path).drop(columns=column).to_csv(path, index=False)

    return apply


def task(name: str, **change: object) -> Break:
    return lambda project: project.edit_task(name, **change)


def leak(project: Project) -> None:
    """Put a training row, in capitals, among the test rows."""
    [first, *_] = project.task_file("questions_train.jsonl").read_text("utf-8").splitlines()
    row = {key: value.upper() for key, value in json.loads(first).items()}
    append("questions_test.jsonl", json.dumps(row) + "\n")(project)


def no_model(project: Project) -> None:
    def apply(content):
        content["reference_model"]["source"] = "./models/missing"

    project.edit_yaml("catalog/raw.yml", apply)


def wrong_width(*widths: int) -> Break:
    return lambda project: project.edit_yaml(
        "parameters.yml", lambda content: content.update(widths=list(widths))
    )


BAD_INPUT: dict[str, tuple[Break, list[str]]] = {
    "an empty file": (
        write("topics_test.csv", ""),
        ["Task 'topics'", f"{TASKS}/topics_test.csv", "no rows"],
    ),
    "a file that is not there": (
        lambda project: project.task_file("topics_test.csv").unlink(),
        ["Task 'topics'", f"{TASKS}/topics_test.csv", "no such file"],
    ),
    "a malformed row": (
        append("questions_test.jsonl", '{"query": "what", "document"\n'),
        ["Task 'questions'", f"{TASKS}/questions_test.jsonl:25", "not valid JSON"],
    ),
    "a row with too many columns": (
        append("topics_test.csv", "one,two,three\n"),
        ["Task 'topics'", f"{TASKS}/topics_test.csv:26", "3 columns where the header has 2"],
    ),
    "a missing column": (
        without_column("groups_train.csv", "label"),
        ["Task 'groups'", f"{TASKS}/groups_train.csv:2", "no column 'label'", "available: text"],
    ),
    "an unknown task type": (
        task("topics", type="sorting"),
        ["raw_tasks.tasks[0]", "type", "'classification'", "'unlabelled'", "sorting"],
    ),
    "two mistakes at once": (
        lambda project: (
            task("topics", type="sorting")(project),
            task("questions", weight=-1)(project),
        ),
        ["raw_tasks.tasks[0]", "raw_tasks.tasks[1].weight"],
    ),
    "widths that do not increase": (
        wrong_width(16, 8, 32),
        ["widths", "strictly increasing", "[16, 8, 32]"],
    ),
    "a width beyond the model": (
        wrong_width(8, 64),
        ["widths", "64 is wider than the model", "allowed: 1 to 32"],
    ),
    "a task with one row": (
        write("topics_train.csv", "text,label\nred card,payment card\n"),
        ["Task 'topics'", f"{TASKS}/topics_train.csv"],
    ),
    "a task with one label": (
        write("topics_train.csv", "text,label\nred card,card\nblue card,card\nold card,card\n"),
        ["Task 'topics'", "one label only ('card')", f"{TASKS}/topics_train.csv"],
    ),
    "a training row among the test rows": (
        leak,
        ["questions", f"{TASKS}/questions_test.jsonl:25", f"{TASKS}/questions_train.jsonl:1"],
    ),
    "a model folder that is not there": (
        no_model,
        ["reference_model.source", "'./models/missing'", "allowed: package:"],
    ),
    "an unknown kind of data set": (
        lambda project: project.edit_yaml(
            "catalog/raw.yml", lambda content: content["raw_tasks"].update(type="no.Such")
        ),
        ["raw_tasks", "no.Such"],
    ),
    "a configuration that is not YAML": (
        lambda project: (project.folder / "conf/test/parameters.yml").write_text("a: [1") and None,
        ["YAML", "parameters.yml"],
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_ends_before_training_in_one_message(project, case):
    spoil, expected = BAD_INPUT[case]
    spoil(project)
    message = refused(project)
    for part in expected:
        assert part in message


BAD_ARGUMENTS = {
    "--params=training.alhpa=1,reze.rho=2": [
        "training.alhpa: unknown parameter; allowed: method,", "alpha", "reze.rho",
    ],
    "--params=training.method=magic": ["training.method", "'reze_mic'", "'magic'"],
    "--pipelines=domain_adpat": ["--pipelines", "'domain_adpat'", "did you mean 'domain_adapt'"],
    "--pipeline=rez": ["--pipelines", "'rez'", "did you mean 'reze'", "training"],
    "--from-nodes=train": ["--from-nodes", "'train'", "train_model"],
    "--nodes=scoer": ["--nodes", "did you mean 'score'"],
    "--tags=nothing": ["--tags", "'nothing'"],
    "--from-inputs=training_pear": ["--from-inputs", "did you mean 'training_pairs'"],
    "--load-versions=model:2020-01-01T00.00.00.000Z": ["--load-versions", "'model'"],
}  # fmt: skip


@pytest.mark.parametrize("argument", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_with_the_allowed_ones(project, argument):
    message = refused(project, argument)
    for part in BAD_ARGUMENTS[argument]:
        assert part in message
    assert not (project.folder / DATA / "02_intermediate").exists()


def test_a_refused_run_is_not_one_that_mlflow_has_opened(project):
    wrong_width(8, 64)(project)
    refused(project)
    assert project.mlflow_runs() == []


def test_bad_data_leaves_a_failed_run_with_the_message(project):
    write("topics_test.csv", "")(project)
    message = refused(project)
    [run] = project.mlflow_runs()
    assert run.info.status == "FAILED"
    assert run.data.tags["error"] == message


def test_a_stage_without_its_inputs_names_all_of_them_and_who_makes_them(project):
    message = refused(project, "--pipelines=training")
    for name in ("training_pairs", "task_specs", "relation_vectors", "shrinkage"):
        assert name in message
    assert "--pipelines=ingestion,curation,relations,reze" in message
    assert project.mlflow_runs() == []


def test_a_version_that_does_not_exist_is_refused(project):
    result = project.run("--pipelines=ingestion")
    assert result.exit_code == 0, result.output
    message = refused(
        project, "--pipelines=curation", "--load-versions=task_specs:2020-01-01T00.00.00.000Z"
    )
    assert message.startswith("task_specs: not there in the version asked for")


def test_one_task_is_enough_and_reze_says_that_it_has_nothing_to_compare(project):
    project.keep_tasks("questions")
    result = project.run("--params=training.batch_size=8")
    assert result.exit_code == 0, result.output
    assert "REZE shrinks nothing: " in result.output
    note = re.search(r"REZE shrinks nothing: (.*?)\.? *\n", result.output)[1].strip()
    assert "one source" in note
    [version] = project.versions(PLACES["training_report"])
    report = json.loads(project.path(PLACES["training_report"], version).read_text("utf-8"))
    assert note.startswith(report["note"])
    html = project.path(PLACES["adaptation_report"], version).read_text("utf-8")
    assert report["note"] in html


def test_leakage_is_dropped_where_the_user_asks_for_it(project):
    leak(project)
    result = project.run("--pipelines=ingestion,curation", "--params=curation.leakage=drop")
    assert result.exit_code == 0, result.output
    [version] = project.versions(PLACES["leakage_report"])
    report = json.loads(project.path(PLACES["leakage_report"], version).read_text("utf-8"))
    assert report["total"] == 1


def test_an_error_of_the_program_keeps_its_traceback_and_names_the_node(project, monkeypatch):
    from domain_embeddings.core.tasks import curation

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(curation, "curate", broken)
    result = project.run("--pipelines=ingestion,curation")
    assert isinstance(result.exception, ZeroDivisionError)
    assert "Node 'curate_records' failed." in result.output


def test_an_interrupted_run_is_tracked_as_killed(project, monkeypatch):
    from domain_embeddings.core.tasks import curation

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(curation, "curate", interrupted)
    result = project.run("--pipelines=ingestion,curation")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    [run] = project.mlflow_runs()
    assert run.info.status == "KILLED"


def test_a_terminated_run_is_tracked_as_killed_too(project, monkeypatch):
    from domain_embeddings.core.tasks import curation

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(curation, "curate", lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        result = project.run("--pipelines=ingestion,curation")
        # A second one would not wait for anything.
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 128 + signal.SIGTERM
    assert "Traceback" not in result.output
    [run] = project.mlflow_runs()
    assert run.info.status == "KILLED"


def test_checkpoints_that_could_not_be_written_are_refused_before_anything_runs(project):
    (project.folder / "file").touch()
    options = "training.steps=9,training.checkpoints.every=2,training.checkpoints.folder=file/below"
    message = refused(project, f"--params={options}")
    assert "training.checkpoints.folder" in message
    assert str(project.folder / "file/below") in message
    assert project.versions(PLACES["task_records"]) == []


def test_errors_are_explained_wherever_they_are_in_the_chain():
    inner = DataError("a.csv:3: wrong")
    outer = RuntimeError("node failed")
    outer.__cause__ = inner
    assert explain(outer) == "a.csv:3: wrong"
    assert explain(RuntimeError("a bug")) is None
    assert explain(ValueError("a bug")) is None


# The same through the real program, where logging, exit codes and exception hooks are those that
# a user has.
PROCESSES: dict[str, tuple[Break, list[str], list[str]]] = {
    "bad data": (
        BAD_INPUT["a malformed row"][0],
        [KEDRO, "run", "--env=test"],
        BAD_INPUT["a malformed row"][1],
    ),
    "bad parameter": (
        lambda project: None,
        [sys.executable, "-m", "domain_embeddings", "--env=test", "--params=training.alhpa=1"],
        ["training.alhpa: unknown parameter"],
    ),
    "bad pipeline": (
        lambda project: None,
        [KEDRO, "run", "--env=test", "--pipelines=rezee"],
        ["did you mean 'reze'"],
    ),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Run all processes side by side; return exit code and output of each."""
    started: dict[str, subprocess.Popen[str]] = {}
    for name, (spoil, command, _) in PROCESSES.items():
        project = make_project(tmp_path_factory.mktemp("process") / "project")
        spoil(project)
        started[name] = project.start(*command)
    found = {}
    for name, process in started.items():
        output, _ = process.communicate(timeout=120)
        found[name] = (process.returncode, output)
    return found


@pytest.mark.parametrize("name", PROCESSES)
def test_a_real_process_ends_with_code_1_and_the_same_one_message(processes, name):
    code, output = processes[name]
    assert code == 1, output
    message = only(output)
    for part in PROCESSES[name][2]:
        assert part in message
