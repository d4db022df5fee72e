"""Pair tables in the catalog."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from domain_embeddings.datasets.pair_table import PairTableDataset


@pytest.fixture
def entry(tmp_path):
    entry = PairTableDataset(filepath=str(tmp_path / "pairs.parquet"))
    negatives = [["a", "b"], [], ["c"]]
    table = {"pair_id": [0, 1, 2], "negatives": negatives, "label": ["x", None, "y"]}
    entry.save(pd.DataFrame(table))
    return entry


def test_lists_come_back_as_they_were_saved(entry):
    assert [list(row) for row in entry.load()["negatives"]] == [["a", "b"], [], ["c"]]


def test_the_preview_is_json_with_lists_as_lists(entry):
    shown = json.loads(json.dumps(entry.preview(nrows=2)))
    assert shown == {
        "index": [0, 1],
        "columns": ["pair_id", "negatives", "label"],
        "data": [[0, ["a", "b"], "x"], [1, [], None]],
    }


def test_the_preview_is_drawn_as_a_table(entry):
    assert PairTableDataset.preview.__annotations__["return"] == "TablePreview"
