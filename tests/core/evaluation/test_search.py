"""Tests of exact search by codes, and of shortlists."""

from __future__ import annotations

import numpy as np
import pytest

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.quantisation import Quantiser, fit_ranges
from domain_embeddings.core.evaluation.search import FlatIndex, Shortlist

D, WIDTH, K = 24, 11, 7


def made(n: int, seed: int) -> np.ndarray:
    return prefix(np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32), D)


CORPUS, QUERIES = made(300, 0), made(20, 1)


def codes(precision: str) -> Quantiser:
    return Quantiser(precision, fit_ranges(made(200, 2), WIDTH))


def similarities(precision: str) -> np.ndarray:
    """Dot products of what the codes restore, by the naive way."""
    sides = [codes(precision).restore(prefix(side, WIDTH)) for side in (QUERIES, CORPUS)]
    return sides[0] @ sides[1].T


@pytest.mark.parametrize("precision", ["float32", "int8", "binary"])
def test_an_index_finds_what_a_loop_over_restored_vectors_finds(precision):
    index = FlatIndex(CORPUS, WIDTH, codes(precision))
    found = index.search(index.prepare(QUERIES), K)
    similar = similarities(precision)
    best = -np.sort(-similar, axis=1)[:, :K]
    # Equal similarities (many, in binary) may be listed in any order.
    np.testing.assert_allclose(np.take_along_axis(similar, found, axis=1), best, atol=1e-5)
    assert all(len(set(row)) == K for row in found.tolist())


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_a_query_alone_finds_what_it_finds_among_others(precision):
    index = FlatIndex(CORPUS, WIDTH, codes(precision))
    together = index.search(index.prepare(QUERIES), K)
    alone = index.search(index.prepare(QUERIES[3:4]), K)
    np.testing.assert_array_equal(alone[0], together[3])


def test_a_shortlist_of_everything_is_an_exact_search():
    shortlist = Shortlist(FlatIndex(CORPUS, WIDTH, codes("binary")), CORPUS, 10_000)
    found = shortlist.search(shortlist.prepare(QUERIES), K)
    expected = np.argsort(-(QUERIES @ CORPUS.T), axis=1)[:, :K]
    np.testing.assert_array_equal(found, expected)


def test_a_shortlist_ranks_its_candidates_by_the_full_vectors():
    index = FlatIndex(CORPUS, WIDTH, codes("int8"))
    shortlist = Shortlist(index, CORPUS, 30)
    found = shortlist.search(shortlist.prepare(QUERIES), K)
    candidates = index.search(index.prepare(QUERIES), 30)
    for query, rows, mine in zip(QUERIES, candidates, found, strict=True):
        ranked = sorted(rows.tolist(), key=lambda row: -float(CORPUS[row] @ query))
        assert mine.tolist() == ranked[:K]
