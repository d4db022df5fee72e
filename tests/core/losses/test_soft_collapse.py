"""Soft collapse against a loop over widths, sequences and entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from domain_embeddings.core.losses import (
    SoftCollapseLoss,
    TokenLayout,
    soft_collapse,
    token_statistics,
)

WIDTHS = [1, 3, 4, 8]
D = 8


def batch(scale: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return padded hidden states with correlated dimensions, and their mask."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(D, D, generator=generator, dtype=torch.float64)
    hidden = torch.randn(5, 7, D, generator=generator, dtype=torch.float64) @ mixing * scale
    lengths = torch.tensor([7, 3, 1, 5, 2])
    return hidden, (torch.arange(7)[None, :] < lengths[:, None]).long()


def naive(
    hidden: Tensor, mask: Tensor, widths: list[int], tau: float
) -> tuple[list[float], list[float]]:
    d = hidden.shape[2]
    relation = np.zeros((d, d))
    deviations = []
    for states, own in zip(hidden.numpy(), mask.numpy(), strict=True):
        x = states[own.astype(bool)]
        std = np.maximum(x.std(axis=0), 1e-5)
        deviations.append(std)
        z = (x - x.mean(axis=0)) / std
        relation += z.T @ z / len(x) / len(hidden)
    spread = np.mean(deviations, axis=0)
    corr, var = [], []
    for m in widths:
        if m == d:
            continue
        total = 0.0
        for u in range(m):
            for v in range(m, d):
                total += max(0.0, abs(relation[u, v]) - tau) ** 2
        corr.append(total / (m * (d - m)))
        var.append(max(0.0, 1 - spread[:m].mean()) + 0.5 * max(0.0, 1 - spread[m:].mean()))
    return corr, var


@pytest.mark.parametrize("tau", [0.0, 0.2, "auto"])
@pytest.mark.parametrize("widths", [WIDTHS, [2, 5], [1], [7, 8]])
@pytest.mark.parametrize("scale", [0.1, 0.3, 3.0])
def test_terms_are_those_of_the_loop(widths: list[int], tau: float, scale: float) -> None:
    hidden, mask = batch(scale)
    statistics = token_statistics(hidden, TokenLayout.from_masks(mask))
    corr, var = soft_collapse(statistics, widths, tau)
    # auto = 2 / sqrt(B * mean N) = 2 / sqrt(number of tokens)
    threshold = 2 / (len(mask) * mask.sum(dim=1).double().mean().item()) ** 0.5
    expected = naive(hidden, mask, widths, threshold if tau == "auto" else tau)
    np.testing.assert_allclose(corr, expected[0], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(var, expected[1], rtol=1e-12, atol=1e-15)
    assert corr.any()


def test_float32_agrees_with_the_loop() -> None:
    hidden, mask = batch()
    corr, var = soft_collapse(
        token_statistics(hidden.float(), TokenLayout.from_masks(mask)), WIDTHS, 0.1
    )
    expected = naive(hidden, mask, WIDTHS, 0.1)
    np.testing.assert_allclose(corr, expected[0], rtol=1e-5)
    np.testing.assert_allclose(var, expected[1], rtol=1e-5)


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_slope_matches_finite_differences(scale: float) -> None:
    hidden, mask = batch(scale)
    layout = TokenLayout.from_masks(mask)
    assert torch.autograd.gradcheck(
        lambda h: soft_collapse(token_statistics(h, layout), WIDTHS, 0.15), hidden.requires_grad_()
    )


def test_slope_is_right_when_widths_count_differently() -> None:
    hidden, mask = batch()
    layout = TokenLayout.from_masks(mask)
    weight = torch.tensor([0.3, 5.0, 1.0], dtype=torch.float64)

    def slope(widths: list[int], weights: Tensor) -> Tensor:
        leaf = hidden.clone().requires_grad_()
        (soft_collapse(token_statistics(leaf, layout), widths, 0.05).corr @ weights).backward()
        assert leaf.grad is not None
        return leaf.grad

    alone = [slope([m], weight[k : k + 1]) for k, m in enumerate(WIDTHS[:-1])]
    torch.testing.assert_close(slope(WIDTHS, weight), torch.stack(alone).sum(dim=0))


def test_copied_dimension_costs_the_most_and_independent_ones_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 20, 2, generator=generator)
    copied = torch.stack([hidden[..., 0], -hidden[..., 0]], dim=-1)
    layout = TokenLayout.from_masks(torch.ones(64, 20))
    independent = soft_collapse(token_statistics(hidden, layout), [1, 2]).corr
    repeated = soft_collapse(token_statistics(copied, layout), [1, 2], 0.25).corr
    assert independent.item() == 0
    assert repeated.item() == pytest.approx(0.75**2, rel=1e-5)


def test_a_threshold_of_one_switches_the_correlation_term_off() -> None:
    hidden, mask = batch()
    corr, _ = soft_collapse(token_statistics(hidden, TokenLayout.from_masks(mask)), WIDTHS, 1.0)
    assert not corr.any()


def test_full_width_alone_has_no_term() -> None:
    hidden, mask = batch()
    terms = soft_collapse(token_statistics(hidden, TokenLayout.from_masks(mask)), [D])
    assert [len(term) for term in terms] == [0, 0]
    assert SoftCollapseLoss([D])(hidden, mask).item() == 0


def test_chunks_give_the_loss_of_the_padded_batch() -> None:
    hidden, mask = batch()
    loss = SoftCollapseLoss(WIDTHS, lambda_corr=10.0)
    chunks = [hidden[:2], hidden[2:3, :1], hidden[3:, :5]]
    masks = [mask[:2], mask[2:3, :1], mask[3:, :5]]
    torch.testing.assert_close(loss(chunks, masks), loss(hidden, mask), rtol=0, atol=1e-12)


def test_module_weighs_and_averages_the_terms() -> None:
    hidden, mask = batch()
    corr, var = naive(hidden, mask, WIDTHS, 0.1)
    loss = SoftCollapseLoss(WIDTHS, tau=0.1, lambda_corr=7.0, lambda_var=0.3)(hidden, mask)
    assert loss.item() == pytest.approx(7 * np.mean(corr) + 0.3 * np.mean(var))


@pytest.mark.parametrize("case", ["one sequence", "one token", "constant"])
def test_degenerate_batches_have_a_defined_loss_and_slope(case: str) -> None:
    hidden = torch.randn(3, 4, D, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 4)
    if case == "one sequence":
        hidden, mask = hidden[:1], mask[:1]
    elif case == "one token":
        mask[:, 1:] = 0
    else:
        hidden = torch.ones_like(hidden)
    hidden.requires_grad_()
    loss = SoftCollapseLoss(WIDTHS)(hidden, mask)
    loss.backward()
    assert torch.isfinite(loss)
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()


def test_autocast_changes_neither_value_nor_slope() -> None:
    hidden, mask = batch()
    half = torch.where(mask[:, :, None] == 1, hidden, 0.0).bfloat16()
    results = []
    for enabled in (False, True):
        leaf = (half if enabled else half.float()).clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = SoftCollapseLoss(WIDTHS)(leaf, mask)
            loss.backward()
        assert leaf.grad is not None
        results.append((loss.detach(), leaf.grad.bfloat16()))
    assert results[1][0].dtype == torch.float32
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_bad_settings_are_named() -> None:
    hidden, mask = batch()
    statistics = token_statistics(hidden, TokenLayout.from_masks(mask))
    with pytest.raises(ValueError, match="d = 8, got"):
        soft_collapse(statistics, [4, 9])
    with pytest.raises(ValueError, match="tau must be"):
        soft_collapse(statistics, [4], -0.1)
