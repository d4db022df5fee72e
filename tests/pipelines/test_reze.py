"""The REZE stage from stored relation vectors to a stored shrinkage, run by Kedro."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.errors import DataError, ProvenanceError
from domain_embeddings.core.statistics.shrinkage import Shrinkage, shrink
from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset
from domain_embeddings.datasets.safetensors_bundle import SafetensorsBundleDataset
from domain_embeddings.parameters import RezeParameters
from domain_embeddings.pipelines.reze.nodes import (
    accumulate_moments,
    decompose,
    fit_shrinkage,
    measure_task_variance,
)
from domain_embeddings.pipelines.reze.pipeline import create_pipeline

STORED = ("relation_moments", "relation_eigenspace", "task_variance", "shrinkage")


def _header(sources: list[str], width: int = 4) -> dict:
    return {
        "sources": sources,
        "model": "tiny",
        "revision": None,
        "weight_hash": "abc",
        "pooling": "mean",
        "prompts": {},
        "max_length": 32,
        "width": width,
        "pair_table_hash": "def",
    }


def _vectors(n_sources: int, rows: int = 600) -> Bundle:
    generator = np.random.default_rng(0)
    source = (np.arange(rows) % n_sources).astype("int32")
    vectors = generator.standard_normal((rows, 8)) * np.linspace(1.0, 0.5, 8)
    vectors[source == n_sources - 1, 3] += 2.0
    names = [f"task_{s}" for s in range(n_sources)]
    return Bundle({"vectors": vectors.astype("float32"), "source": source}, _header(names))


def _run(directory: Path, vectors: Bundle, reze: RezeParameters) -> DataCatalog:
    relation_vectors = MemmapBundleDataset(filepath=str(directory / "relation_vectors"))
    relation_vectors.save(vectors)
    datasets = {
        name: SafetensorsBundleDataset(filepath=str(directory / f"{name}.safetensors"))
        for name in STORED
    }
    catalog = DataCatalog(
        {"relation_vectors": relation_vectors, "params:reze": MemoryDataset(reze), **datasets}
    )
    SequentialRunner().run(create_pipeline(), catalog)
    return catalog


def test_the_stage_writes_what_training_reads(tmp_path: Path) -> None:
    vectors = _vectors(5)
    catalog = _run(tmp_path, vectors, RezeParameters())
    bundle = catalog.load("shrinkage")
    columns = bundle["columns"]
    assert columns.dtype == np.int64
    assert bundle["basis"].shape == (8, len(columns))
    assert bundle["offset"].shape == bundle["scale"].shape == (5, len(columns))
    assert bundle["shrunk"].shape == (5, 8)
    assert bundle["shrunk"].dtype == bool
    settings = {"mode": "translate", "eta": 0.7, "gamma": 1.0, "rho": 0.99, "note": ""}
    assert {**vectors.header, **settings}.items() <= bundle.header.items()

    eigenspace = catalog.load("relation_eigenspace")
    np.testing.assert_array_equal(bundle["basis"], eigenspace["eigenvectors"][:, columns])
    shrinkage = Shrinkage(**bundle.arrays, note=bundle.header["note"])
    source = vectors["source"]
    moved = shrink(shrinkage, vectors["vectors"], source) - vectors["vectors"]
    # The planted bias of the last task is taken back by most of eta.
    assert moved[source == 4, 3].mean() < -0.4


def test_the_result_does_not_depend_on_the_block_size(tmp_path: Path) -> None:
    one = _run(tmp_path / "a", _vectors(5), RezeParameters(block_rows=7)).load("shrinkage")
    other = _run(tmp_path / "b", _vectors(5), RezeParameters(block_rows=10_000)).load("shrinkage")
    for name in one.arrays:
        np.testing.assert_allclose(one[name], other[name], atol=1e-10)


def test_a_single_source_warns_and_gives_an_empty_shrinkage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        bundle = _run(tmp_path, _vectors(1), RezeParameters()).load("shrinkage")
    assert "only one source" in caplog.text
    assert "only one source" in bundle.header["note"]
    assert bundle["basis"].shape == (8, 0)
    assert bundle["offset"].shape == (1, 0)


def test_a_source_without_pairs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    vectors = _vectors(3)
    header = {**vectors.header, "sources": [*vectors.header["sources"], "empty_task"]}
    with caplog.at_level(logging.WARNING):
        accumulate_moments(Bundle(vectors.arrays, header), RezeParameters())
    assert "'empty_task' has no pairs" in caplog.text


def test_what_was_found_is_logged_by_source(caplog: pytest.LogCaptureFixture) -> None:
    reze = RezeParameters()
    with caplog.at_level(logging.INFO):
        moments = accumulate_moments(_vectors(5), reze)
        eigenspace = decompose(moments, reze)
        variance = measure_task_variance(moments, eigenspace, reze)
        shrinkage = fit_shrinkage(eigenspace, variance, reze)
    count = int(shrinkage["shrunk"][4].sum())
    active = int(eigenspace["active"].sum())
    assert count
    assert f"'task_4' is shrunk in {count} of {active} active dimensions" in caplog.text


def test_bundles_of_different_vectors_are_refused() -> None:
    reze = RezeParameters()
    moments = accumulate_moments(_vectors(5), reze)
    eigenspace = decompose(moments, reze)
    variance = measure_task_variance(moments, eigenspace, reze)
    other = Bundle(eigenspace.arrays, {**eigenspace.header, "weight_hash": "other"})
    with pytest.raises(ProvenanceError, match="weight_hash: 'abc' against 'other'"):
        measure_task_variance(moments, other, reze)
    with pytest.raises(ProvenanceError, match="weight_hash"):
        fit_shrinkage(other, variance, reze)
    refitted = decompose(moments, RezeParameters(rho=0.5))
    with pytest.raises(ProvenanceError, match="rho"):
        fit_shrinkage(refitted, variance, reze)


def test_vectors_that_are_not_pairs_of_the_announced_width_are_refused() -> None:
    vectors = _vectors(2)
    with pytest.raises(DataError, match="not pairs of embeddings of width 5"):
        accumulate_moments(Bundle(vectors.arrays, {**vectors.header, "width": 5}), RezeParameters())


def test_the_pipeline_names_its_nodes_and_data() -> None:
    pipeline = create_pipeline()
    assert {n.name for n in pipeline.nodes} == {
        "accumulate_moments",
        "decompose",
        "measure_task_variance",
        "fit_shrinkage",
    }
    assert pipeline.inputs() == {"relation_vectors", "params:reze"}
    assert set(pipeline.all_outputs()) == set(STORED)
