from __future__ import annotations

import pandas as pd
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.records import RawTasks
from domain_embeddings.core.tasks.spec import parse_specs
from domain_embeddings.parameters import (
    CurationParameters,
    EvaluationParameters,
    TrainingParameters,
)
from domain_embeddings.pipelines.curation.pipeline import create_pipeline
from domain_embeddings.pipelines.ingestion.nodes import read_task_records

OUTPUTS = (
    "curated_records",
    "curation_report",
    "leakage_report",
    "training_pairs",
    "pairing_report",
    "evaluation_tasks",
    "dev_tasks",
)


def made_catalog(folder, shuffled=False, dev=None, **curation):
    rows = [("text", "label", "unused"), *((f"text {n}", "xy"[n % 2], f"{n}") for n in range(20))]
    order = (2, 1, 0) if shuffled else (0, 1, 2)
    lines = [",".join(row[place] for place in order) for row in rows]
    (folder / "train.csv").write_text("\n".join(lines))
    (folder / "test.csv").write_text("text,label\nTEXT  3.,y\nnew,x\nnewer,y\n")
    files = {"train": "train.csv", "test": "test.csv"}
    specs = parse_specs([{"name": "made", "type": "classification", "files": files}])
    records, dumped, _ = read_task_records(RawTasks(tuple(specs), folder))
    catalog = DataCatalog(
        {
            "task_records": MemoryDataset(records),
            "task_specs": MemoryDataset(dumped),
            "params:curation": MemoryDataset(CurationParameters(**curation)),
            "params:evaluation": MemoryDataset(EvaluationParameters()),
            "params:training": MemoryDataset(TrainingParameters(dev=dev or {})),
            "params:seed": MemoryDataset(0),
        }
    )
    for name in OUTPUTS:
        catalog[name] = MemoryDataset()
    return catalog


def test_leakage_stops_the_run_after_the_report_is_saved(tmp_path):
    catalog = made_catalog(tmp_path)
    with pytest.raises(DataError, match=r"train.csv:5 \(train of 'made'\) repeats test.csv:2"):
        SequentialRunner().run(create_pipeline(), catalog)
    assert catalog["leakage_report"].load()["total"] == 1
    assert not catalog["training_pairs"].exists()
    assert not catalog["evaluation_tasks"].exists()


@pytest.mark.parametrize(("policy", "kept"), [("drop", 19), ("allow", 20)])
def test_the_policy_decides_what_is_trained_and_probed_on(tmp_path, policy, kept):
    catalog = made_catalog(tmp_path, leakage=policy)
    SequentialRunner().run(create_pipeline(), catalog)
    pairs = catalog["training_pairs"].load()
    evaluation = catalog["evaluation_tasks"].load()
    probe = evaluation.loc[evaluation["split"] == "train", "text"]
    assert len(pairs) == kept
    assert ("text 3" in set(pairs["anchor"])) == (policy == "allow")
    assert ("text 3" in set(probe)) == (policy == "allow")
    removed = catalog["pairing_report"].load()["removed_as_leakage"]
    assert removed == ({"made": 1} if policy == "drop" else {})


def test_the_same_input_gives_the_same_pairs(tmp_path):
    tables = []
    for _ in range(2):
        catalog = made_catalog(tmp_path, leakage="drop", max_pairs_per_task=7)
        SequentialRunner().run(create_pipeline(), catalog)
        tables.append(catalog["training_pairs"].load())
    pd.testing.assert_frame_equal(*tables)
    assert len(tables[0]) == 7


def test_shuffled_columns_give_the_same_pairs(tmp_path):
    tables = []
    for shuffled in (False, True):
        catalog = made_catalog(tmp_path, shuffled, leakage="drop")
        SequentialRunner().run(create_pipeline(), catalog)
        tables.append(catalog["training_pairs"].load())
    assert (tmp_path / "train.csv").read_text().startswith("unused,label,text")
    pd.testing.assert_frame_equal(*tables)


def test_records_survive_parquet(tmp_path):
    catalog = made_catalog(tmp_path)
    records = catalog["task_records"].load()
    records.to_parquet(tmp_path / "r.parquet")
    catalog["task_records"] = MemoryDataset(pd.read_parquet(tmp_path / "r.parquet"))
    with pytest.raises(DataError, match="repeats"):
        SequentialRunner().run(create_pipeline(), catalog)


def test_the_minimum_length_reaches_curation(tmp_path):
    catalog = made_catalog(tmp_path, min_characters=7, leakage="drop")
    with pytest.raises(DataError, match="Task 'made'"):
        SequentialRunner().run(create_pipeline(), catalog)


def test_scores_during_training_without_a_dev_split_are_refused_before_anything_is_encoded(
    tmp_path,
):
    catalog = made_catalog(tmp_path, dev={"every": 5}, leakage="drop")
    with pytest.raises(DataError, match=r"training\.dev\.every: 5 .* split 'dev'"):
        SequentialRunner().run(create_pipeline(), catalog)


def test_dev_tasks_hold_the_dev_split_and_the_rows_of_its_probe(tmp_path):
    catalog = made_catalog(tmp_path, dev={"every": 5}, leakage="drop")
    records = catalog["task_records"].load()
    moved = (records["split"] == "train") & (records["row"] >= 14)
    catalog["task_records"] = MemoryDataset(
        records.assign(split=records["split"].mask(moved, "dev"))
    )
    SequentialRunner().run(create_pipeline(), catalog)
    selected = catalog["dev_tasks"].load()
    assert set(selected["split"]) == {"train", "dev"}
    assert set(selected.loc[selected["split"] == "dev", "text"]) == {
        f"text {n}" for n in range(14, 20)
    }
    assert set(catalog["evaluation_tasks"].load()["split"]) == {"train", "test"}


def test_without_a_dev_split_there_are_no_dev_tasks(tmp_path):
    catalog = made_catalog(tmp_path, leakage="drop")
    SequentialRunner().run(create_pipeline(), catalog)
    assert catalog["dev_tasks"].load().empty
