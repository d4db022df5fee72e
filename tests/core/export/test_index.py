from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.quantisation import bytes_per_vector, fit_ranges
from domain_embeddings.core.export.corpus import VECTORS_FILE
from domain_embeddings.core.export.folders import quantiser_of, write_settings
from domain_embeddings.core.export.index import VectorIndex, write_index

COUNT, K = 700, 10


def make(folder, precision, width):
    """Write an embedded corpus of made-up vectors; return its vectors and its index."""
    rng = np.random.default_rng(width)
    # Correlated and far from zero, so that ranges differ between coordinates.
    vectors = prefix(rng.normal(size=(COUNT, width)) * np.linspace(0.2, 2, width) + 0.3, width)
    vectors = vectors.astype(np.float32)
    # Calibrated on some of them: others are beyond the ranges, and one coordinate is constant.
    calibration = fit_ranges(vectors[:50], width)
    calibration[1, 3] = calibration[0, 3]
    settings = {
        "width": width, "precision": precision, "documents": COUNT,
        "quantisation": {"int8": calibration.tolist()},
    }  # fmt: skip
    source, target = folder / "source", folder / "target"
    source.mkdir()
    target.mkdir()
    quantiser = quantiser_of(settings, precision)
    codes = quantiser.encode(vectors)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(codes.reshape(-1)), codes.shape[1])
    ids = [f"doc {i}" for i in range(COUNT)]
    pq.write_table(pa.table({"id": ids, "vector": lists}), source / VECTORS_FILE)
    write_settings(source, settings)
    details = write_index(source, target)
    return vectors, quantiser, details, VectorIndex(target)


@pytest.mark.parametrize("width", [8, 20])
@pytest.mark.parametrize("precision", ["float32", "int8", "binary"])
def test_the_index_finds_the_neighbours_of_exact_search(precision, width, tmp_path):
    vectors, quantiser, details, index = make(tmp_path, precision, width)
    rng = np.random.default_rng(1)
    queries = prefix(rng.normal(size=(25, width)) + 0.3, width).astype(np.float32)
    restored = quantiser.restore(vectors)
    asked = quantiser.restore(queries) if precision == "binary" else queries
    exact = asked.astype(np.float64) @ restored.T.astype(np.float64)
    ids, scores = index.search(queries, K)
    assert ids.shape == scores.shape == (25, K)
    rows = np.array([[int(name.removeprefix("doc ")) for name in row] for row in ids])
    # Equal scores may come in any order, so the documents are compared by theirs.
    best = -np.sort(-exact, axis=1)[:, :K]
    np.testing.assert_allclose(np.take_along_axis(exact, rows, axis=1), best, atol=1e-5)
    np.testing.assert_allclose(scores, best, atol=1e-5)
    assert all(len(set(row)) == K for row in rows)
    assert details["vectors"] == COUNT
    assert details["bytes_per_vector"] == bytes_per_vector(width, precision)


def test_more_neighbours_than_documents_are_all_documents(tmp_path):
    vectors, _, _, index = make(tmp_path, "float32", 8)
    ids, _ = index.search(vectors[:2], 10_000)
    assert ids.shape == (2, COUNT)
    assert [row[0] for row in ids] == ["doc 0", "doc 1"]
