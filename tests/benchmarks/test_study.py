"""The study tool: variants x seeds, resumable, compared row by row."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

from benchmarks import study

TASKS = """
- name: topics
  type: classification
  files: {train: tests/fixtures/tasks/topics_train.csv, test: tests/fixtures/tasks/topics_test.csv}
- name: similar
  type: sts
  uses: [evaluate]
  files: {test: tests/fixtures/tasks/similar_test.parquet}
"""
TINY = (
    "widths=[8, 32];training.steps=2;training.batch_size=8;training.device=cpu;"
    "evaluation.fit_pairs=20;evaluation.classification.experiments=2;"
    "evaluation.classification.samples_per_label=2"
)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return a function that runs the tool on made-up tasks and gives its output file."""
    listed = tmp_path / "tasks.yml"
    listed.write_text(TASKS, encoding="utf-8")
    out = tmp_path / "study.jsonl"
    common = ["study", "--tasks", str(listed), "--model", "tests/fixtures/model", "--set", TINY]

    def run(*arguments):
        command = [*common, "--split", "test", "--out", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        study.main()
        return out

    return run


def test_changes_become_nested_parameters():
    changes = study.parse("training.method=mrl;training.rotation.when=none;seed=3")

    assert changes == {"training": {"method": "mrl", "rotation": {"when": "none"}}, "seed": 3}


def test_finished_runs_are_not_repeated_and_variants_are_compared_row_by_row(start, capsys):
    untouched, mrl = "untouched:training.method=reference", "mrl:training.method=mrl"
    out = start("--variant", untouched)
    first = out.read_text(encoding="utf-8")

    out = start("--variant", untouched, "--variant", mrl, "--bootstrap", "20")
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert out.read_text(encoding="utf-8").startswith(first)
    assert [row["variant"] for row in rows] == ["untouched", "mrl"]
    assert set(rows[1]["mean"]) == {"none/8", "none/32", "pca/8", "pca/32"}

    start("--bootstrap", "20", "--contrast", "mrl-untouched", "--contrast", "mrl-mrl")
    own = capsys.readouterr().out.partition("mrl-mrl")
    difference = (rows[1]["tasks"]["topics/none/8"] - rows[0]["tasks"]["topics/none/8"]) * 100
    assert f"topics            8  {difference:+.2f}" in own[0]
    assert "topics            8  +0.00 ±nan   +0.00 [+0.00, +0.00]" in own[2]


def test_summary_gives_mean_and_spread_over_seeds():
    runs = [
        {"variant": "a", "mean": {"none/16": value, "pca/16": 0.5}, "tasks": {"t/none/16": 0.1}}
        for value in (0.2, 0.4)
    ]

    table = study.summary(runs)
    assert isinstance(table, pd.DataFrame)
    assert table.loc["a", 16] == "30.00 ±14.14"
    assert table.loc["a + pca", 16] == "50.00 ±0.00"
    assert study.summary(runs, "t").loc["a", 16] == "10.00 ±0.00"
