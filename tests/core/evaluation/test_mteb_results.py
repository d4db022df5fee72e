"""Tests of scores in mteb's own result format."""

from __future__ import annotations

import pandas as pd
import pytest

from domain_embeddings.core.evaluation.mteb_results import local_results, model_meta

HEADER = {"weight_hash": "abc", "width": 32, "max_length": 64, "prompts": {}}


def scores(**changes):
    """Two metrics of one task of one model."""
    row = {
        "model": "adapted",
        "transform": "none",
        "precision": "float32",
        "task": "faq",
        "type": "retrieval",
        "width": 32,
        "metric": "ndcg_at_10",
        "main": True,
        "value": 0.75,
        "split": "test",
        "mteb_version": "2.26.24",
        **changes,
    }
    return pd.DataFrame([row, row | {"metric": "mrr_at_10", "main": False, "value": 0.5}])


def results(*frames):
    table = pd.concat(frames, ignore_index=True)
    return list(local_results(table, {"adapted": HEADER}, dict.fromkeys(table["task"], "digest")))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, None),
        ({"width": 8}, "embed_dim_8"),
        ({"width": 8, "transform": "pca"}, "embed_dim_8__transform_pca"),
        ({"precision": "int8"}, "output_dtypes_int8"),
    ],
)
def test_a_variant_of_a_model_is_an_experiment_of_it(changes, name):
    meta = model_meta("adapted", HEADER, **{"width": 32, **changes})
    assert meta.experiment_name == name
    assert (meta.name, meta.revision) == ("local/adapted", "abc")
    assert meta.embed_dim == changes.get("width", 32)


def test_metrics_have_the_names_of_mteb():
    [found] = results(scores(task="pairs", type="pair_classification", metric="ap"))
    [entry] = found.result.scores["test"]
    assert entry["max_ap"] == entry["main_score"] == 0.75
    assert entry["mrr_at_10"] == 0.5
    assert found.result.mteb_version == "2.26.24"
    assert found.result.dataset_revision == "digest"


def test_every_task_width_transform_and_precision_is_a_result_and_nothing_else():
    found = results(
        scores(),
        scores(width=8),
        scores(transform="pca"),
        scores(task="other"),
        scores(precision="int8"),
        scores(model="adapted_minus_reference"),
        scores(task="mean", type="mean", metric="main"),
        scores(task="general_mean", type="mean", metric="main"),
    )
    assert {(r.model.experiment_name, r.result.task_name) for r in found} == {
        (None, "faq"),
        ("embed_dim_8", "faq"),
        ("transform_pca", "faq"),
        ("output_dtypes_int8", "faq"),
        (None, "other"),
    }
    assert len(found) == 5
