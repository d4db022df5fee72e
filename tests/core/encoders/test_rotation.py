from __future__ import annotations

import numpy as np
import pytest
from planted import pair_vectors
from sentence_transformers import SentenceTransformer
from tiny_models import WORDS, tiny_sentence_transformer

from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.rotation import find_rotation, fit_rotation, rotate_model
from domain_embeddings.core.errors import DataError


def fit(embeddings, *, centre=False):
    """Fit principal axes of embeddings that are not pairs."""
    half = len(embeddings) // 2
    pairs = pair_vectors(embeddings[:half], embeddings[half : 2 * half])
    return fit_rotation(pairs, (), axes="principal", centre=centre)


@pytest.fixture
def model(tmp_path):
    return tiny_sentence_transformer(tmp_path)


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=6)) for _ in range(80)]


def test_a_rotation_puts_the_planted_direction_first():
    rng = np.random.default_rng(1)
    direction = np.linalg.qr(rng.normal(size=(8, 8)))[0][:, 0]
    x = rng.normal(size=(4000, 8)) * 0.1 + rng.normal(size=(4000, 1)) * direction
    basis, _ = fit(x)
    assert abs(basis[:, 0] @ direction) > 0.999
    np.testing.assert_allclose(basis.T @ basis, np.eye(8), atol=1e-12)


def test_an_uncentred_rotation_changes_no_cosine_at_full_width(model, texts):
    before = encode(model, texts, show_progress=False)
    rotate_model(model, *fit(before))
    after = encode(model, texts, show_progress=False)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=2e-6)
    assert np.abs(after - before).max() > 0.01


@pytest.mark.parametrize("centre", [False, True])
def test_the_saved_rotation_equals_the_formula_in_plain_sentence_transformers(
    model, texts, tmp_path, centre
):
    before = encode(model, texts, show_progress=False).astype(np.float64)
    basis, mean = fit(before, centre=centre)
    rotate_model(model, basis, mean)
    model.save_pretrained(str(tmp_path / "rotated"))
    loaded = SentenceTransformer(str(tmp_path / "rotated"))
    expected = (before - mean) @ basis
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(loaded.encode(texts), expected, atol=5e-6)


def test_two_rotations_become_one(model, texts):
    before = encode(model, texts, show_progress=False).astype(np.float64)
    rng = np.random.default_rng(2)
    first = np.linalg.qr(rng.normal(size=(32, 32)))[0]
    second = np.linalg.qr(rng.normal(size=(32, 32)))[0]
    mean = rng.normal(size=32) * 0.01
    rotate_model(model, first, np.zeros(32))
    modules = len(model)
    rotate_model(model, second, mean)
    assert len(model) == modules
    expected = prefix((before @ first - mean) @ second, 32)
    np.testing.assert_allclose(encode(model, texts, show_progress=False), expected, atol=5e-6)


def test_a_centred_rotation_is_kept_below_the_next_one(model, texts):
    before = encode(model, texts, show_progress=False).astype(np.float64)
    first, mean = fit(before, centre=True)
    rotate_model(model, first, mean)
    between = prefix((before - mean) @ first, 32)
    second = np.linalg.qr(np.random.default_rng(4).normal(size=(32, 32)))[0]
    rotate_model(model, second, np.zeros(32))
    after = encode(model, texts, show_progress=False)
    np.testing.assert_allclose(after, between @ second, atol=5e-6)


def test_a_rotation_keeps_more_in_the_first_coordinates(model, texts):
    before = encode(model, texts, show_progress=False)
    rotate_model(model, *fit(before))
    after = encode(model, texts, show_progress=False)
    assert after[:, :4].var(axis=0).sum() > before[:, :4].var(axis=0).sum()


def test_a_rotation_is_not_trained(model, texts):
    rotate_model(model, *fit(encode(model, texts, show_progress=False)))
    assert all(not p.requires_grad for p in find_rotation(model).parameters())


def test_shared_axes_leave_out_what_only_one_side_says():
    rng = np.random.default_rng(5)
    topic, noise = np.eye(8)[2], np.eye(8)[6]
    told = rng.normal(size=(500, 1)) * 0.3 * topic
    anchors = told + rng.normal(size=(500, 1)) * noise + rng.normal(size=(500, 8)) * 0.01
    positives = told + rng.normal(size=(500, 8)) * 0.01
    pairs = pair_vectors(anchors, positives)
    shared, _ = fit_rotation(pairs, (), axes="shared")
    principal, _ = fit_rotation(pairs, (), axes="principal")
    assert abs(shared[:, 0] @ topic) > 0.99
    assert abs(principal[:, 0] @ noise) > 0.99


def test_centred_axes_are_learned_from_centred_embeddings():
    """A direction that all texts share hides the rest from cosines until it is subtracted."""
    rng = np.random.default_rng(6)
    told = rng.normal(size=(300, 8)) * np.linspace(1, 0.2, 8)
    anchors, positives = told + 5 * np.eye(8)[0] + rng.normal(size=(2, 300, 8)) * 0.05
    pairs = pair_vectors(anchors, positives)
    basis, mean = fit_rotation(pairs, [4, 8], centre=True)
    np.testing.assert_allclose(mean, np.concatenate([anchors, positives]).mean(axis=0))
    np.testing.assert_array_equal(basis, fit_rotation(pairs.centred(mean), [4, 8])[0])
    assert np.abs(basis - fit_rotation(pairs, [4, 8])[0]).max() > 1e-3


def test_embeddings_that_are_not_finite_are_refused():
    broken = np.ones((20, 8))
    broken[3, 3] = np.nan
    with pytest.raises(DataError, match=r"training\.rotation: .*not finite"):
        fit_rotation(pair_vectors(broken, broken), [4])
