"""Tests of int8 and binary codes."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.quantisation import (
    Quantiser,
    bytes_per_vector,
    calibrate,
    fit_ranges,
    quantiser,
    unsigned,
)
from domain_embeddings.core.errors import DataError, ProvenanceError

D = 24
HEADERS = {"mine": {"weight_hash": "a", "prompts": {}}}


def random_vectors(n: int = 500, width: int = D, seed: int = 0, offset=0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return prefix((rng.normal(size=(n, width)) + offset).astype(np.float32), width)


def neighbours(vectors: np.ndarray, k: int = 10) -> np.ndarray:
    """Rows of the k most similar other vectors, by the naive way."""
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    return np.argsort(-similar, axis=1)[:, :k]


def recall(found: np.ndarray, wanted: np.ndarray) -> float:
    pairs = zip(found, wanted, strict=True)
    return float(np.mean([len({*a} & {*b}) / len(b) for a, b in pairs]))


@pytest.mark.parametrize("width", [1, 7, D])
def test_codes_are_those_of_sentence_transformers_with_the_same_ranges(width):
    cut, calibration = prefix(random_vectors(), width), random_vectors(seed=1)
    ranges = fit_ranges(calibration, width)
    codes = Quantiser("int8", ranges).encode(cut)
    np.testing.assert_array_equal(codes, quantize_embeddings(cut, "int8", ranges=ranges))
    assert codes.dtype == np.int8
    signs = Quantiser("binary").encode(cut)
    np.testing.assert_array_equal(signs, quantize_embeddings(cut, "binary"))
    np.testing.assert_array_equal(unsigned(signs), quantize_embeddings(cut, "ubinary"))
    np.testing.assert_array_equal(unsigned(codes), quantize_embeddings(cut, "uint8", ranges=ranges))


def test_int8_codes_equal_a_loop_over_numbers():
    cut = random_vectors(40)
    ranges = fit_ranges(random_vectors(60, seed=1), D)
    codes = Quantiser("int8", ranges).encode(cut)
    for (row, column), x in np.ndenumerate(cut):
        low, high = (np.float32(bound) for bound in ranges[:, column])
        step = (high - low) / np.float32(255)
        assert codes[row, column] == min(255, max(0, int(np.floor((x - low) / step)))) - 128


@pytest.mark.parametrize("precision", ["int8", "binary"])
def test_a_row_alone_has_the_code_it_has_in_a_large_batch(precision):
    cut = random_vectors(300)
    codes = Quantiser(precision, fit_ranges(random_vectors(seed=2), D))
    together = codes.encode(cut)
    for row in (0, 17, 299):
        np.testing.assert_array_equal(codes.encode(cut[row : row + 1])[0], together[row])
        alone = codes.restore(cut[row : row + 1])[0]
        np.testing.assert_array_equal(alone, codes.restore(cut)[row])


def test_restored_numbers_are_within_half_a_step_inside_the_ranges():
    calibration = random_vectors(2_000)
    ranges = fit_ranges(calibration, D)
    restored = Quantiser("int8", ranges).restore(calibration)
    step = (ranges[1] - ranges[0]) / 255
    # The largest value of all has the code of the last step and lies at its upper edge.
    assert (np.abs(restored - calibration) <= 0.51 * step).all()
    assert np.abs((restored - calibration).mean(axis=0) / step).max() < 0.05  # no bias


def test_numbers_beyond_the_ranges_are_clipped_not_wrapped():
    ranges = np.array([[-0.1], [0.1]], dtype=np.float32)
    codes = Quantiser("int8", ranges).encode(np.array([[-5.0], [-0.1], [0.1], [5.0]], np.float32))
    assert codes.ravel().tolist() == [-128, -128, 127, 127]


def test_a_constant_coordinate_is_restored_as_it_was():
    codes = Quantiser("int8", np.array([[0.25], [0.25]], dtype=np.float32))
    seen = np.array([[0.25], [0.2], [0.3]], np.float32)
    assert codes.encode(seen).tolist() == [[-128]] * 3
    assert codes.restore(seen).tolist() == [[0.25]] * 3


def test_a_coordinate_that_dwarfs_the_others_does_not_cost_their_bits():
    # As some models have it: one coordinate is large for every text and says next to nothing.
    offset = np.zeros(D)
    offset[3] = 60.0
    vectors, calibration = (random_vectors(seed=seed, offset=offset) for seed in (0, 1))
    wanted = neighbours(vectors)
    ranges = fit_ranges(calibration, D)
    found = neighbours(Quantiser("int8", ranges).restore(vectors))
    # One range for all leaves the other coordinates a few dozen codes.
    common = np.stack([np.full(D, ranges[0].min()), np.full(D, ranges[1].max())])
    coarse = neighbours(Quantiser("int8", common).restore(vectors))
    assert recall(found, wanted) > 0.9
    assert recall(coarse, wanted) < 0.7


def test_a_single_text_with_an_outlier_in_the_calibration_set_does_no_great_harm():
    vectors, calibration = random_vectors(), random_vectors(seed=1)
    calibration[0] = np.eye(D, dtype=np.float32)[3]
    restored = Quantiser("int8", fit_ranges(calibration, D)).restore(vectors)
    assert recall(neighbours(restored), neighbours(vectors)) > 0.95


def test_signs_follow_the_arcsine_law():
    width, trials = 64, 4_000
    rng = np.random.default_rng(0)
    for cosine in (-0.5, 0.0, 0.3, 0.9):
        x, noise = rng.normal(size=(2, trials, width))
        y = cosine * x + np.sqrt(1 - cosine**2) * noise
        signs = [Quantiser("binary").restore(side.astype(np.float32)) for side in (x, y)]
        mean = float((signs[0] * signs[1]).sum(axis=1).mean())
        assert mean == pytest.approx(2 / np.pi * np.arcsin(cosine), abs=0.01)


def test_the_dot_product_of_signs_is_the_hamming_distance():
    codes = Quantiser("binary")
    vectors = random_vectors(20, 19)
    packed, restored = unsigned(codes.encode(vectors)), codes.restore(vectors)
    assert packed.shape == (20, 3)
    for a in range(20):
        for b in range(20):
            hamming = sum(int(x ^ y).bit_count() for x, y in zip(packed[a], packed[b], strict=True))
            assert restored[a] @ restored[b] == pytest.approx(1 - 2 * hamming / 19, abs=1e-6)


def test_float32_changes_nothing():
    vectors = random_vectors(5)
    assert Quantiser().restore(vectors) is vectors


@pytest.mark.parametrize(("precision", "size"), [("float32", 400), ("int8", 100), ("binary", 13)])
def test_sizes_are_those_of_the_codes(precision, size):
    vectors = random_vectors(3, 100)
    codes = Quantiser(precision, fit_ranges(vectors, 100)).encode(vectors)
    assert codes.nbytes // 3 == bytes_per_vector(100, precision) == size


def test_ranges_are_those_of_normalised_prefixes():
    vectors = random_vectors()
    cut = vectors[:, :5] / np.linalg.norm(vectors[:, :5], axis=1, keepdims=True)
    expected = np.stack([cut.min(axis=0), cut.max(axis=0)])
    np.testing.assert_allclose(fit_ranges(vectors, 5), expected, rtol=1e-6)


def test_stored_ranges_serve_one_model_and_its_widths():
    vectors = random_vectors()
    stored = calibrate({"mine": vectors}, [4, D], HEADERS)
    assert set(stored.arrays) == {"mine_4", f"mine_{D}"}
    assert stored.header == {
        "widths": [4, D], "texts": {"mine": 500}, "models": {"mine": {"weight_hash": "a"}}
    }  # fmt: skip
    found = quantiser("int8", "mine", 4, stored, weight_hash="a")
    np.testing.assert_array_equal(found.ranges, fit_ranges(vectors, 4))
    assert quantiser("binary", "mine", 5).ranges is None
    with pytest.raises(DataError, match="'mine' at width 8; quantisation_ranges has mine_24, min"):
        quantiser("int8", "mine", 8, stored)
    with pytest.raises(DataError, match="has none"):
        quantiser("int8", "mine", 8)
    with pytest.raises(ProvenanceError, match=r"other weights.*'mine' \(a against b\)"):
        quantiser("int8", "mine", 4, stored, weight_hash="b")


def test_a_calibration_set_of_one_text_is_refused():
    with pytest.raises(DataError, match=r"at least 2 texts, got 1.*fit_pairs"):
        fit_ranges(random_vectors(1), 4)
