"""Tests of the search over all widths, against the plain way: cut, normalise, compare, sort."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.evaluation import nested
from domain_embeddings.core.evaluation.nested import NestedSearch, pair_similarities

WIDTHS = [2, 3, 4, 12]


def vectors(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32)


def searched(queries, documents, k, block, widths=WIDTHS) -> NestedSearch:
    found = NestedSearch(queries, widths, k)
    for start in range(0, len(documents), block):
        found.add(documents[start : start + block])
    return found


@pytest.mark.parametrize("block", [1, 7, 100, 1_000])
def test_the_nearest_documents_are_those_of_the_plain_way(block):
    queries, documents = vectors(9, 0), vectors(230, 1)
    found = searched(queries, documents, 10, block)
    for width in WIDTHS:
        cosines = prefix(queries, width) @ prefix(documents, width).T
        values, rows = found.result(width)
        np.testing.assert_array_equal(rows, np.argsort(-cosines, axis=1, kind="stable")[:, :10])
        np.testing.assert_allclose(values, np.take_along_axis(cosines, rows, 1), atol=1e-6)


def test_blocks_of_documents_and_queries_change_nothing(monkeypatch):
    # Small whole numbers: sums are exact, so equal results have to be equal to the last bit.
    rng = np.random.default_rng(2)
    queries, documents = (rng.integers(-2, 3, size=(n, 12)).astype(np.float32) for n in (33, 500))
    whole = searched(queries, documents, 20, len(documents))
    monkeypatch.setattr(nested, "_BLOCK_ELEMENTS", 300)
    in_blocks = searched(queries, documents, 20, 37)
    for width in WIDTHS:
        for one, other in zip(whole.result(width), in_blocks.result(width), strict=True):
            np.testing.assert_array_equal(one, other)


def test_similarities_of_all_queries_and_documents_are_never_in_memory_at_once(monkeypatch):
    sizes = []
    genuine = nested._Best.add

    def add(self, scores, *rest):
        sizes.append(scores.numel())
        genuine(self, scores, *rest)

    monkeypatch.setattr(nested._Best, "add", add)
    monkeypatch.setattr(nested, "_BLOCK_ELEMENTS", 400)
    searched(vectors(50, 0), vectors(300, 1), 5, 40)
    assert max(sizes) <= 400
    assert sum(sizes) == 50 * 300 * len(WIDTHS)


def test_of_equal_documents_the_first_is_kept():
    one = vectors(1, 3)
    documents = np.concatenate([vectors(4, 4), np.repeat(one, 9, axis=0), vectors(4, 5)])
    for block in (2, 5, 100):
        _, rows = searched(one, documents, 3, block).result(12)
        np.testing.assert_array_equal(rows, [[4, 5, 6]])


def test_fewer_documents_than_asked_for_are_all_returned():
    values, rows = searched(vectors(3, 0), vectors(4, 1), 10, 3).result(12)
    assert values.shape == (3, 4)
    assert np.isfinite(values).all()
    assert [set(row) for row in rows.tolist()] == [{0, 1, 2, 3}] * 3


def test_a_document_without_length_is_similar_to_nothing():
    documents = np.concatenate([np.zeros((1, 12), dtype=np.float32), vectors(3, 1)])
    values, rows = searched(vectors(2, 0), documents, 4, 4).result(3)
    assert (values[rows == 0] == 0).all()


def test_similarities_of_pairs_are_those_of_the_plain_way():
    left, right = vectors(20, 0), vectors(20, 1)
    expected = (prefix(left, 12) * prefix(right, 12)).sum(axis=1)
    np.testing.assert_allclose(pair_similarities(left, right), expected, atol=1e-6)
