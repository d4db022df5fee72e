"""Stored replicates are read back as they were, undefined ones included."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.evaluation.replicates import replicates_bundle, seed_scores
from domain_embeddings.datasets.safetensors_bundle import SafetensorsBundleDataset


def bundle(seed: int, shift: float = 0.0):
    drawn = np.array([[0.5, np.nan, 0.25], [0.1, 0.2, 0.3]]) + shift
    rows = [
        ({"model": "a", "task": "t"}, 0.5, drawn[0]),
        ({"model": "b", "task": "t"}, 0.2, drawn[1]),
    ]
    return replicates_bundle(rows, {"seed": seed})


def test_they_survive_the_disk_and_stack_by_seed(tmp_path):
    stored = []
    for seed, shift in ((0, 0.0), (1, 0.25)):
        place = SafetensorsBundleDataset(filepath=str(tmp_path / f"{seed}.safetensors"))
        place.save(bundle(seed, shift))
        stored.append(place.load())
    found = seed_scores(stored, model="a", task="t")
    np.testing.assert_array_equal(found.values, [0.5, 0.5])
    np.testing.assert_array_equal(found.replicates, [[0.5, np.nan, 0.25], [0.75, np.nan, 0.5]])
    assert stored[1].header["seed"] == 1


def test_a_key_must_name_one_row():
    with pytest.raises(DataError, match=r"2 rows of \{'task': 't'\}"):
        seed_scores([bundle(0)], task="t")
    with pytest.raises(DataError, match="0 rows"):
        seed_scores([bundle(0)], model="c")


def test_no_resamples_are_stored_as_none():
    empty = replicates_bundle([({"model": "a"}, 0.5, np.empty(0))], {})
    assert empty["replicates"].shape == (1, 0)
    assert seed_scores([empty], model="a").replicates.shape == (1, 0)
