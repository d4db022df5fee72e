from __future__ import annotations

import math

import numpy as np
import torch

from domain_embeddings.core.losses.simcse import ViewHead


def test_the_head_is_a_tanh_layer_on_the_scaled_embedding():
    head = ViewHead(9, seed=3)
    x = torch.nn.functional.normalize(torch.randn(4, 9), dim=1)
    expected = np.tanh(3 * x.numpy() @ head.linear.weight.detach().numpy().T)
    np.testing.assert_allclose(head(x).detach(), expected, atol=1e-6)


def test_the_head_starts_from_its_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, second, other = ViewHead(16, 1), ViewHead(16, 1), ViewHead(16, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.linear.weight, second.linear.weight)
    assert not torch.equal(first.linear.weight, other.linear.weight)
    assert 0.7 < first.linear.weight.std().item() * math.sqrt(16) < 1.3
    assert first.linear.bias.abs().max() == 0


def test_gradients_match_finite_differences():
    head = ViewHead(4).double()
    x = torch.nn.functional.normalize(torch.randn(3, 4, dtype=torch.float64), dim=1)
    assert torch.autograd.gradcheck(head, x.requires_grad_())
