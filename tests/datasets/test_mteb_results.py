"""Tests of the catalog entry with results in mteb's own format."""

from __future__ import annotations

import pandas as pd
import pytest
from kedro.io import Version
from mteb.cache import ResultCache

from domain_embeddings.core.evaluation.mteb_results import local_results
from domain_embeddings.datasets.mteb_results import MtebResultsDataset

HEADER = {"weight_hash": "abc", "width": 32, "max_length": 64, "prompts": {}}


def made():
    rows = [
        {
            "model": model,
            "transform": transform,
            "precision": "float32",
            "task": task,
            "type": "sts",
            "width": width,
            "metric": "spearman",
            "main": True,
            "value": width / 100,
            "split": "test",
            "mteb_version": "2.26.24",
        }
        for model in ("reference", "adapted")
        for transform in ("none", "pca")
        for task in ("similar", "alike")
        for width in (8, 32)
    ]
    headers = {"reference": HEADER, "adapted": HEADER}
    return list(local_results(pd.DataFrame(rows), headers, {"similar": "a", "alike": "b"}))


@pytest.fixture
def folder(tmp_path):
    dataset = MtebResultsDataset(
        filepath=str(tmp_path / "mteb_results"), version=Version(None, "2026-01-01T00.00.00.000Z")
    )
    dataset.save(made())
    return tmp_path / "mteb_results/2026-01-01T00.00.00.000Z/mteb_results"


def test_files_lie_where_mteb_puts_them(folder):
    place = folder / "results/local__adapted/abc"
    assert sorted(path.name for path in place.iterdir()) == [
        "alike.json", "experiments", "model_meta.json", "run_settings.jsonl", "similar.json",
    ]  # fmt: skip
    variants = sorted(path.name for path in (place / "experiments").iterdir())
    assert variants == ["embed_dim_8", "embed_dim_8__transform_pca", "transform_pca"]
    assert not list(folder.parent.glob("*.partial"))


def test_mteb_reads_back_what_was_saved(folder):
    found = ResultCache(folder).load_results(
        models=["local/adapted"], include_remote=False, load_experiments="match_name"
    )
    assert len(found.model_results) == 4
    for model in found.model_results:
        expected = 0.08 if "embed_dim_8" in (model.experiment_name or "") else 0.32
        assert [task.get_score() for task in model.task_results] == [expected] * 2
        assert {task.task_name for task in model.task_results} == {"similar", "alike"}


def test_the_entry_loads_as_results_of_mteb(tmp_path, folder):
    place = str(tmp_path / "mteb_results")
    dataset = MtebResultsDataset(filepath=place, version=Version(None, None))
    assert dataset.exists()
    assert len(dataset.load().model_results) == 8
    narrow = ResultCache(folder).load_results(
        include_remote=False, experiment_kwargs={"embed_dim": 8}
    )
    assert {model.experiment_name for model in narrow.model_results} == {"embed_dim_8"}


def test_no_result_at_all_is_an_empty_folder(tmp_path):
    dataset = MtebResultsDataset(filepath=str(tmp_path / "none"), version=Version(None, "v"))
    dataset.save([])
    assert dataset.load().model_results == []
