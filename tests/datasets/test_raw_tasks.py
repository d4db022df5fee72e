from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from kedro.io import DataCatalog
from kedro.io.core import DatasetError

from domain_embeddings.core.errors import DataError, ParameterError
from domain_embeddings.datasets.raw_tasks import RawTasksDataset

ROOT = Path(__file__).parents[2]
TASKS = [
    {"name": "tickets", "type": "classification", "files": {"train": "a.csv", "test": "b.csv"}},
    {"name": "faq", "type": "retrieval", "files": {"train": "c.jsonl"}},
]


def test_nothing_is_read_before_rows_are_asked_for(tmp_path):
    dataset = RawTasksDataset(tasks=TASKS, root=str(tmp_path))
    assert "tickets, faq" in repr(dataset)
    raw = dataset.load()
    assert [spec.name for spec in raw.specs] == ["tickets", "faq"]
    with pytest.raises(DataError, match=r"Task 'tickets': a.csv: no such file \(looked for"):
        raw.read()


def test_paths_start_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "c.jsonl").write_text('{"query": "q", "document": "d"}\n')
    monkeypatch.chdir(tmp_path)
    records, _ = RawTasksDataset(tasks=TASKS[1:]).load().read()
    assert records["text"].tolist() == ["q"]


def test_saving_is_refused():
    dataset = RawTasksDataset(tasks=TASKS)
    with pytest.raises(DatasetError, match="read only"):
        dataset.save("anything")


def test_bad_tasks_are_refused_when_the_entry_is_made():
    with pytest.raises(ParameterError, match=r"raw_tasks.tasks\[0\].type"):
        RawTasksDataset(tasks=[{**TASKS[0], "type": "unknown"}])


def test_the_message_survives_the_catalog():
    entry = {
        "type": "domain_embeddings.datasets.raw_tasks.RawTasksDataset",
        "tasks": [{**TASKS[0], "wieght": 1}],
    }
    with pytest.raises(DatasetError, match=r"raw_tasks.tasks\[0\].wieght: unknown key"):
        DataCatalog.from_config({"raw_tasks": entry})["raw_tasks"].load()


def test_the_shipped_catalog_is_valid_and_lies_in_the_raw_layer():
    catalog = yaml.safe_load((ROOT / "conf/base/catalog/01_raw.yml").read_text(encoding="utf-8"))
    dataset = DataCatalog.from_config({"raw_tasks": catalog["raw_tasks"]})["raw_tasks"]
    assert dataset.metadata == {"kedro-viz": {"layer": "raw"}}
    types = {spec.type for spec in dataset.load().specs}
    assert types == {"retrieval", "classification", "clustering", "pair_classification"}
