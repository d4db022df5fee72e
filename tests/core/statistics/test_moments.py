"""Streaming moments equal the naive ones, however the rows are cut, ordered or merged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.moments import Moments, accumulate, block_moments, merge


def _naive(vectors: np.ndarray, source: np.ndarray, n_sources: int) -> Moments:
    vectors = vectors.astype(np.float64)
    width = vectors.shape[1]
    mean = np.zeros((n_sources, width))
    count = np.zeros(n_sources, dtype=np.int64)
    for s in range(n_sources):
        rows = vectors[source == s]
        count[s] = len(rows)
        if len(rows):
            mean[s] = rows.mean(axis=0)
    u = vectors.mean(axis=0)
    scatter = np.zeros((width, width))
    for row in vectors:
        scatter += np.outer(row - u, row - u)
    return Moments(count, mean, u, scatter)


def _assert_close(got: Moments, expected: Moments, scale: float = 1.0) -> None:
    np.testing.assert_array_equal(got.count, expected.count)
    tolerance = 1e-10 * scale
    np.testing.assert_allclose(got.mean, expected.mean, rtol=1e-10, atol=tolerance)
    np.testing.assert_allclose(got.global_mean, expected.global_mean, rtol=1e-10, atol=tolerance)
    np.testing.assert_allclose(
        got.scatter, expected.scatter, rtol=1e-10, atol=tolerance * scale * got.rows
    )


def _cut(array: np.ndarray, cuts: list[int]) -> list[np.ndarray]:
    return np.split(array, sorted(cuts))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_moments_do_not_depend_on_blocks_order_or_merge_order(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    n_sources = data.draw(st.integers(1, 4))
    offset = data.draw(st.sampled_from([0.0, 1.0, 100.0]))
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    vectors = (generator.standard_normal((rows, 3)) + offset).astype(dtype)
    # Sorted by source, so that early blocks know one source only.
    source = np.sort(generator.integers(n_sources, size=rows))
    expected = _naive(vectors, source, n_sources)
    scale = 1.0 + offset

    cuts = data.draw(st.lists(st.integers(0, rows), max_size=6))
    blocks, sources = _cut(vectors, cuts), _cut(source, cuts)
    _assert_close(accumulate(blocks, sources, n_sources), expected, scale)

    order = generator.permutation(rows)
    shuffled = accumulate(_cut(vectors[order], cuts), _cut(source[order], cuts), n_sources)
    _assert_close(shuffled, expected, scale)

    parts = [
        block_moments(block, s, n_sources)
        for block, s in zip(blocks, sources, strict=True)
        if len(block)
    ]
    while len(parts) > 1:  # merge in an arbitrary tree
        first = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        second = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(merge(first, second))
    _assert_close(parts[0], expected, scale)


def test_a_large_common_offset_does_not_swallow_the_scatter() -> None:
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((4_000, 2))
    source = np.zeros(4_000, dtype=np.int32)
    blocks, sources = np.split(noise + 1e6, 8), np.split(source, 8)
    scatter = accumulate(blocks, sources, 1).scatter
    exact = (noise - noise.mean(axis=0)).T @ (noise - noise.mean(axis=0))
    # E[x x^T] - u u^T would lose all but four digits here.
    np.testing.assert_allclose(scatter, exact, rtol=1e-7, atol=1e-4)


def test_half_precision_is_accumulated_in_float64() -> None:
    vectors = np.full((5_000, 1), 0.1, dtype="float16")
    moments = accumulate([vectors], [np.zeros(5_000, dtype=np.int32)], 1)
    assert moments.global_mean.dtype == np.float64
    assert moments.global_mean[0] == pytest.approx(float(np.float16(0.1)), abs=1e-13)
    assert moments.scatter[0, 0] == pytest.approx(0.0, abs=1e-20)


def test_the_input_is_not_changed() -> None:
    vectors = np.arange(6.0).reshape(3, 2)
    kept = vectors.copy()
    accumulate([vectors], [np.array([0, 1, 0])], 2)
    np.testing.assert_array_equal(vectors, kept)


def test_one_row_and_one_dimension() -> None:
    moments = accumulate([np.array([[3.0]])], [np.array([0])], 1)
    assert moments.rows == 1
    assert moments.covariance.tolist() == [[0.0]]
    assert moments.mean.tolist() == [[3.0]]


def test_merging_with_nothing_changes_nothing() -> None:
    some = block_moments(np.arange(6.0).reshape(3, 2), np.array([0, 1, 0]), 2)
    nothing = Moments(np.zeros(2, dtype=np.int64), np.zeros((2, 2)), np.zeros(2), np.zeros((2, 2)))
    _assert_close(merge(some, nothing), some)
    _assert_close(merge(nothing, some), some)


@pytest.mark.parametrize(
    ("blocks", "sources", "message"),
    [
        ([], [], "no relation vectors"),
        ([np.zeros((0, 2))], [np.zeros(0, dtype=int)], "no relation vectors"),
        ([np.zeros((2, 2))], [np.array([0, 2])], "reach from 0 to 2"),
        ([np.zeros((2, 2))], [np.array([-1, 0])], "reach from -1"),
        ([np.zeros((2, 2))], [np.array([0])], "do not match"),
        ([np.zeros(2)], [np.array([0, 0])], "do not match"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], [np.array([0])] * 2, "cannot be merged"),
        ([np.array([[np.nan, 0.0]])], [np.array([0])], "not finite"),
    ],
)
def test_bad_input_is_refused(blocks: list, sources: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        accumulate(blocks, sources, 2)
