"""Tests of the post-hoc transforms."""

from __future__ import annotations

import numpy as np
import pytest
from planted import pair_vectors

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.evaluation.transforms import TRANSFORMS, fit_transform

D = 12


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(400, D)) * np.linspace(1, 3, D) @ rng.normal(size=(D, D))
    return prefix((mixed + 2).astype(np.float32), D)


def as_pairs(vectors):
    half = len(vectors) // 2
    return pair_vectors(vectors[:half], vectors[half:])


def test_none_changes_nothing(vectors):
    np.testing.assert_array_equal(fit_transform("none", vectors).apply(vectors), vectors)


def test_pca_changes_no_cosine_at_full_width(vectors):
    rotated = fit_transform("pca", vectors).apply(vectors)
    np.testing.assert_allclose(rotated @ rotated.T, vectors @ vectors.T, atol=1e-5)


def test_centred_pca_does_change_cosines(vectors):
    rotated = prefix(fit_transform("pca_centred", vectors).apply(vectors), D)
    assert np.abs(rotated @ rotated.T - vectors @ vectors.T).max() > 0.1


@pytest.mark.parametrize("name", ["pca", "pca_centred"])
def test_pca_puts_the_variance_first_and_leaves_no_correlation(vectors, name):
    covariance = np.cov(fit_transform(name, vectors).apply(vectors), rowvar=False)
    variances = np.diagonal(covariance)
    assert (np.diff(variances) <= 1e-7).all()
    assert np.abs(covariance - np.diag(variances)).max() < 1e-5


def test_a_pca_prefix_keeps_more_variance_than_any_coordinate_prefix(vectors):
    kept = fit_transform("pca", vectors).apply(vectors)[:, :3].var(axis=0).sum()
    best = np.sort(vectors.var(axis=0))[-3:].sum()
    assert kept > best


@pytest.mark.parametrize("name", ["pca", "pca_centred", "whitening"])
def test_the_order_of_the_texts_does_not_change_the_axes(vectors, name):
    shuffled = vectors[np.random.default_rng(1).permutation(len(vectors))]
    first, second = fit_transform(name, vectors), fit_transform(name, shuffled)
    np.testing.assert_allclose(first.apply(vectors), second.apply(vectors), atol=1e-3)


def test_pca_signs_are_canonical(vectors):
    matrix = fit_transform("pca", vectors).matrix
    largest = matrix[np.abs(matrix).argmax(axis=0), np.arange(D)]
    assert (largest > 0).all()


def test_whitening_equalises_the_variances_of_many_texts():
    spread = np.random.default_rng(0).normal(size=(4_000, D)) * np.linspace(1, 5, D)
    variances = fit_transform("whitening", spread.astype(np.float32)).apply(spread).var(axis=0)
    assert variances.max() / variances.min() < 1.1


@pytest.mark.parametrize("name", TRANSFORMS)
def test_fewer_texts_than_dimensions_give_finite_vectors(vectors, name):
    few = fit_transform(name, vectors[:4], as_pairs(vectors[:4]), (2, 4))
    assert np.isfinite(few.apply(vectors)).all()


@pytest.mark.parametrize("name", TRANSFORMS)
def test_output_stays_in_single_precision(vectors, name):
    fitted = fit_transform(name, vectors, as_pairs(vectors), (2, 4))
    assert fitted.apply(vectors).dtype == np.float32


@pytest.mark.parametrize("name", ["shared", "contrastive"])
def test_transforms_of_pairs_are_rotations_and_need_pairs(vectors, name):
    transform = fit_transform(name, vectors, as_pairs(vectors), (2, 4))
    np.testing.assert_allclose(transform.matrix.T @ transform.matrix, np.eye(D), atol=1e-5)
    with pytest.raises(ParameterError, match=f"'{name}' is fitted on training pairs"):
        fit_transform(name, vectors)


def test_the_shared_transform_does_not_ask_which_side_is_the_anchor(vectors):
    anchors, positives, sources = vectors[:200], vectors[200:], np.repeat(["a", "b"], 100)
    transform, swapped = (
        fit_transform("shared", vectors, pair_vectors(*sides, sources))
        for sides in ((anchors, positives), (positives, anchors))
    )
    np.testing.assert_allclose(swapped.matrix, transform.matrix, atol=1e-5)


def test_an_unknown_transform_is_refused_with_the_allowed_names(vectors):
    with pytest.raises(ParameterError, match=r"evaluation\.transforms.*'zca'.*none, pca"):
        fit_transform("zca", vectors)


def test_too_few_texts_are_refused(vectors):
    with pytest.raises(ParameterError, match=r"at least 2 texts, got 1"):
        fit_transform("pca", vectors[:1])
    assert fit_transform("none", vectors[:0]).name == "none"
