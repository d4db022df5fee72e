"""Tests of the measures of geometry before and after training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from task_data import specs

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.bank import KEY_BYTES, text_key
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import ProvenanceError
from domain_embeddings.core.evaluation.geometry import geometry_scores

D, N = 16, 120
SPECS = specs("clustering", "classification", "sts")
TASKS = [str(spec["name"]) for spec in SPECS]
HEADER = {"prompts": {}, "max_length": 64, "weight_hash": "w", "width": D}


@pytest.fixture
def pairs():
    return pd.DataFrame(
        {
            "pair_id": range(N),
            "task": [TASKS[i % 3] for i in range(N)],
            "anchor": [f"anchor {i}" for i in range(N)],
            "positive": [f"positive {i}" for i in range(N)],
            "label": None,
        }
    )


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    anchors = rng.normal(size=(N, D)) * np.linspace(2, 0.5, D)
    both = np.vstack([anchors, anchors + 0.5 * rng.normal(size=(N, D))])
    both[np.tile(np.arange(N) % 3 == 0, 2), 1] += 3.0
    return prefix(both.astype(np.float32), D)


def bundle(pairs, vectors, **arrays) -> Bundle:
    texts = [*pairs["anchor"], *pairs["positive"]]
    keys = np.array([np.frombuffer(text_key("", text), dtype=np.uint8) for text in texts])
    order = np.array(sorted(range(len(texts)), key=lambda row: bytes(keys[row])))
    assert keys.shape[1] == KEY_BYTES
    return Bundle({"vectors": vectors[order], "keys": keys[order], **arrays}, dict(HEADER))


def measure(pairs, reference, adapted, columns=(0,), **header) -> pd.DataFrame:
    relations = np.hstack([reference["vectors"][:1], reference["vectors"][:1]])
    eigenspace = Bundle(
        {
            "eigenvalues": np.linspace(2, 1, 2 * D),
            "eigenvectors": np.eye(2 * D),
            "mean": np.zeros(relations.shape[1]),
            "active": np.ones(2 * D, dtype=bool),
        },
        {**HEADER, "sources": sorted(TASKS), **header},
    )
    shrinkage = Bundle({"columns": np.array(columns, dtype=np.int64)}, {})
    banks = {"reference": reference, "adapted": adapted}
    return geometry_scores(banks, pairs, SPECS, [4, D], eigenspace, shrinkage)


def value(scores, measure, model="adapted", source="all", width=D) -> float:
    rows = scores[
        (scores["measure"] == measure)
        & (scores["model"] == model)
        & (scores["source"] == source)
        & (scores["width"] == width)
    ]
    assert len(rows) == 1
    return float(rows["value"].iloc[0])


def test_an_unchanged_model_has_not_moved(pairs, vectors):
    scores = measure(pairs, bundle(pairs, vectors), bundle(pairs, vectors))
    assert value(scores, "shift") == pytest.approx(0, abs=1e-6)
    assert value(scores, "cka") == pytest.approx(1)
    pivot = scores.pivot_table(
        index=["measure", "source", "width"], columns="model", values="value"
    )
    np.testing.assert_allclose(pivot["adapted"], pivot["reference"], atol=1e-6)


def test_every_measure_is_there_once_and_finite(pairs, vectors):
    scores = measure(pairs, bundle(pairs, vectors), bundle(pairs, vectors))
    assert list(scores.columns) == ["model", "measure", "source", "width", "value"]
    assert not scores.duplicated(["model", "measure", "source", "width"]).any()
    assert np.isfinite(scores["value"]).all()
    everywhere = {"isoscore", "effective_rank", "uniformity", "alignment", "cv"}
    for width in (4, D):
        assert everywhere <= set(scores.loc[scores["width"] == width, "measure"])
    assert set(scores.loc[scores["measure"] == "cross_correlation_max", "width"]) == {4}
    assert value(scores, "isoscore_rows") == 2 * N


def test_a_rotation_that_the_model_carries_is_undone(pairs, vectors):
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(D, D)))[0].astype(np.float32)
    reference = bundle(pairs, vectors)
    silent = measure(pairs, reference, bundle(pairs, vectors @ basis))
    told = measure(pairs, reference, bundle(pairs, vectors @ basis, rotation=basis))
    assert value(silent, "shift") > 0.3
    assert value(told, "shift") == pytest.approx(0, abs=1e-6)
    expected = value(told, "source_bias", "reference", TASKS[0])
    assert value(told, "source_bias", source=TASKS[0]) == pytest.approx(expected, abs=1e-5)
    turned = value(told, "uniformity", width=4)
    assert turned == value(silent, "uniformity", width=4)
    assert turned != pytest.approx(value(told, "uniformity", "reference", width=4), abs=1e-3)


def test_two_rotated_models_are_compared_in_one_basis(pairs, vectors):
    first, second = (
        np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0].astype(np.float32)
        for seed in (1, 2)
    )
    scores = measure(
        pairs,
        bundle(pairs, vectors @ first, rotation=first),
        bundle(pairs, vectors @ second, rotation=second),
    )
    assert value(scores, "shift") == pytest.approx(0, abs=1e-6)


def test_a_bias_that_is_taken_out_shows_for_its_source_alone(pairs, vectors):
    repaired = vectors.copy()
    rows = np.tile(np.arange(N) % 3 == 0, 2)
    repaired[rows, 1] -= vectors[rows, 1].mean() - vectors[~rows, 1].mean()
    scores = measure(pairs, bundle(pairs, vectors), bundle(pairs, repaired), columns=(1, D + 1))
    biased = TASKS[0]
    before = value(scores, "source_bias_shrunk", "reference", biased)
    assert value(scores, "source_bias_shrunk", source=biased) < 0.2 * before
    assert value(scores, "source_bias", source=biased) < value(
        scores, "source_bias", "reference", biased
    )
    assert value(scores, "shift", source=biased) > 10 * value(scores, "shift", source=TASKS[1])


def test_without_shrunk_directions_their_bias_is_left_out(pairs, vectors):
    scores = measure(pairs, bundle(pairs, vectors), bundle(pairs, vectors), columns=())
    assert "source_bias_shrunk" not in set(scores["measure"])


def test_an_eigenspace_of_another_model_is_refused(pairs, vectors):
    with pytest.raises(ProvenanceError, match="weight_hash: 'w' against 'other'"):
        measure(pairs, bundle(pairs, vectors), bundle(pairs, vectors), weight_hash="other")
