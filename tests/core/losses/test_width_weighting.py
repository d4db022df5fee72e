from __future__ import annotations

import math

import pytest
import torch

from domain_embeddings.core.losses.width_weighting import WidthWeighting

WIDTHS = (2, 4, 10)


def test_equal_and_given_weights_are_means():
    losses = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    assert WidthWeighting("equal", WIDTHS)(losses, [0, 1, 2]).item() == pytest.approx(3.0)
    given = WidthWeighting([1.0, 1.0, 2.0], WIDTHS)
    assert given(losses, [0, 1, 2]).item() == pytest.approx((1 + 2 + 12) / 4)
    assert given(losses[1:], [1, 2]).item() == pytest.approx((2 + 12) / 3)
    full = WidthWeighting("full", WIDTHS)
    assert full(losses, [0, 1, 2]).item() == pytest.approx((1 + 2) / 8 + 6 * 3 / 4)
    assert full(losses[1:], [1, 2]).item() == pytest.approx((2 + 6 * 3) / 4)
    assert WidthWeighting("full", [10])(losses[:1], [0]).item() == pytest.approx(1)
    assert given.learned() is None
    assert not list(given.parameters())


def test_learned_weights_start_equal_and_equal_the_formula():
    losses = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)
    weighting = WidthWeighting("dynamic", WIDTHS)
    assert weighting(losses, [0, 1, 2]).item() == pytest.approx(3.0)
    with torch.no_grad():
        weighting.log_variance.copy_(torch.tensor([0.5, -1.0, 2.0]))
    s = [0.5, -1.0, 2.0]
    expected = sum(math.exp(-s[k]) * losses[k].item() + s[k] for k in (0, 2))
    expected /= sum(math.exp(-s[k]) for k in (0, 2))
    assert weighting(losses[[0, 2]], [0, 2]).item() == pytest.approx(expected, rel=1e-6)
    weights = torch.exp(-torch.tensor(s))
    assert torch.allclose(weighting.learned(), weights / weights.sum())


def test_learned_weights_settle_at_one_over_the_loss():
    losses = torch.tensor([0.5, 1.0, 4.0])
    weighting = WidthWeighting("dynamic", WIDTHS)
    optimiser = torch.optim.Adam(weighting.parameters(), lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        weighting(losses, [0, 1, 2]).backward()
        optimiser.step()
    assert torch.allclose(weighting.log_variance, losses.log(), atol=1e-2)


def test_the_weights_of_the_losses_always_sum_to_one():
    losses = torch.tensor([0.5, 1.0, 4.0], requires_grad=True)
    weighting = WidthWeighting("dynamic", WIDTHS)
    with torch.no_grad():
        weighting.log_variance.copy_(torch.tensor([-3.0, 0.0, 1.0]))
    weighting(losses, [0, 1, 2]).backward()
    assert losses.grad.sum().item() == pytest.approx(1.0)
    assert torch.allclose(losses.grad, weighting.learned())
