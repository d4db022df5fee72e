"""Spectral isotropy against a loop over widths and pairs."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from domain_embeddings.core.losses import SpectralIsotropyLoss, spectral_isotropy

WIDTHS = [1, 3, 8]


def pooled(count: int = 9, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.linspace(0.2, 2, 8, dtype=torch.float64)
    return torch.randn(count, 8, generator=generator, dtype=torch.float64) * scales + 0.3


def naive(z: np.ndarray, widths: list[int], t: float) -> tuple[list[float], list[float]]:
    cv, unif = [], []
    for m in widths:
        x = z[:, :m]
        variance = x.var(axis=0)
        cv.append(variance.std() / (variance.mean() + 1e-8))
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        terms = [
            math.exp(-2 * t * (1 - unit[i] @ unit[k]))
            for i in range(len(x))
            for k in range(len(x))
            if i != k
        ]
        unif.append(math.log(sum(terms) / len(terms)))
    return cv, unif


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_terms_are_those_of_the_loop(t: float) -> None:
    z = pooled()
    cv, unif = spectral_isotropy(z, WIDTHS, t)
    expected = naive(z.numpy(), WIDTHS, t)
    np.testing.assert_allclose(cv, expected[0], rtol=1e-10)
    np.testing.assert_allclose(unif, expected[1], rtol=1e-10)


def test_slope_matches_finite_differences() -> None:
    assert torch.autograd.gradcheck(
        lambda z: spectral_isotropy(z, WIDTHS), pooled(5).requires_grad_()
    )


@given(st.integers(0, 1_000), st.floats(0.1, 30))
@settings(max_examples=25, deadline=None)
def test_scale_and_order_of_the_batch_do_not_matter(seed: int, scale: float) -> None:
    z = pooled(seed=seed)
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed))
    for one, other in zip(
        spectral_isotropy(z[order] * scale, WIDTHS), spectral_isotropy(z, WIDTHS), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@given(st.integers(0, 1_000))
@settings(max_examples=25, deadline=None)
def test_order_of_dimensions_inside_a_block_does_not_matter(seed: int) -> None:
    z = pooled(seed=seed)
    mixed = z[:, [0, 2, 1, 7, 5, 6, 3, 4]]
    for one, other in zip(
        spectral_isotropy(mixed, WIDTHS), spectral_isotropy(z, WIDTHS), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_opposite_points_reach_the_closed_form() -> None:
    """Two opposite unit vectors: cosine -1, equal variances."""
    z = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    cv, unif = spectral_isotropy(z, [2])
    assert cv.item() == 0
    assert unif.item() == pytest.approx(-8)


@pytest.mark.parametrize(
    ("z", "expected"),
    [(torch.ones(1, 4), [0, 0]), (torch.ones(3, 4), [0, 0]), (torch.zeros(3, 4), [0, -4])],
    ids=["one sequence", "equal sequences", "zero vectors"],
)
def test_degenerate_batches_have_a_defined_loss_and_slope(z: Tensor, expected: list[int]) -> None:
    leaf = z.clone().requires_grad_()
    cv, unif = spectral_isotropy(leaf, [2, 4])
    (cv.sum() + unif.sum()).backward()
    np.testing.assert_allclose(cv.detach(), expected[0], atol=1e-6)
    np.testing.assert_allclose(unif.detach(), expected[1], atol=1e-6)
    assert leaf.grad is not None
    assert torch.isfinite(leaf.grad).all()


def test_one_dead_dimension_has_a_finite_slope() -> None:
    z = pooled().float()
    z[:, 0] = 0
    z.requires_grad_()
    cv, unif = spectral_isotropy(z, WIDTHS)
    (cv.sum() + unif.sum()).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_autocast_changes_nothing() -> None:
    z = pooled().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        actual = spectral_isotropy(z, WIDTHS)
    for one, other in zip(actual, spectral_isotropy(z.float(), WIDTHS), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


def test_module_averages_both_terms_over_widths() -> None:
    z = pooled(70)
    cv, unif = naive(z.numpy(), WIDTHS, 2.0)
    assert SpectralIsotropyLoss(WIDTHS)(z).item() == pytest.approx(np.mean(np.add(cv, unif)) / 2)


def test_a_small_batch_is_warned_of_once() -> None:
    loss = SpectralIsotropyLoss(WIDTHS)
    with pytest.warns(UserWarning, match="sees 9 sequences.*at least 64"):
        loss(pooled())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(pooled())
        SpectralIsotropyLoss(WIDTHS)(pooled(64))


def test_widths_beyond_the_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="d = 8"):
        spectral_isotropy(pooled(), [4, 16])
