from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from domain_embeddings.core.losses.espresso import (
    EspressoLoss,
    compression,
    depth_weight,
    principal_target,
)


def layers(count=3, rows=10, d=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, d, generator=generator, dtype=torch.float64) for _ in range(count)]


def naive_target(x, width):
    a = np.exp(x.T @ x / math.sqrt(x.shape[1]))
    a /= a.sum(axis=1, keepdims=True)
    u, s, _ = np.linalg.svd(a)
    target = x @ u[:, :width] @ np.diag(s[:width])
    for j in range(width):
        if target[:, j] @ x[:, j] < 0:
            target[:, j] *= -1
    return target


def naive_compression(x, target, width):
    prefix, goal = x[:, :width], target[:, :width]
    p = np.exp(goal) / np.exp(goal).sum(axis=1, keepdims=True)
    q = np.exp(prefix) / np.exp(prefix).sum(axis=1, keepdims=True)
    return ((prefix - goal) ** 2).mean() + (p * np.log(p / q)).sum(axis=1).mean()


def naive_info_nce(x, pairs, width):
    a, p = x[:pairs, :width], x[pairs:, :width]
    a = a / np.linalg.norm(a, axis=1, keepdims=True)
    p = p / np.linalg.norm(p, axis=1, keepdims=True)
    scores = a @ p.T / 0.05
    scores -= scores.max(axis=1, keepdims=True)
    return -np.mean(np.diag(scores) - np.log(np.exp(scores).sum(axis=1)))


def test_the_target_is_the_principal_components_of_the_softmax():
    x = layers()[0]
    target = principal_target(x, 5)
    np.testing.assert_allclose(target, naive_target(x.numpy(), 5), atol=1e-10)
    assert torch.equal(principal_target(x, 3), target[:, :3])
    assert not principal_target(x.requires_grad_(), 3).requires_grad


def test_the_sign_of_a_component_does_not_depend_on_the_solver():
    x = layers()[0]
    target = principal_target(x, 4)
    assert ((target * x[:, :4]).sum(dim=0) >= 0).all()
    # Texts in another order give other rounding, and the same target.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(principal_target(x[order], 4), target[order], atol=1e-10)


def test_compression_equals_the_formula_and_is_zero_on_target():
    x = layers()[0]
    target = principal_target(x, 4)
    expected = [naive_compression(x.numpy(), target.numpy(), m) for m in (2, 4)]
    np.testing.assert_allclose(compression(x, target, [2, 4]), expected, atol=1e-10)
    assert compression(target, target, [2, 4]).abs().max() < 1e-15


def test_the_terms_equal_naive_loops():
    states, widths, pairs = layers(), [2, 4, 8], 5
    parts = EspressoLoss(widths)(states, pairs)
    arrays = [x.numpy() for x in states]
    express = compress = 0.0
    for number, x in enumerate(arrays, start=1):
        distance = np.mean([naive_compression(x, naive_target(x, 4), m) for m in (2, 4)])
        if number == 3:
            compress += distance
            continue
        weight = 1 / (1 + math.log(1 + number)) / 2
        compress += weight * distance
        express += weight * np.mean([naive_info_nce(x, pairs, m) for m in widths])
    assert parts["ese_kd"].item() == pytest.approx(compress, rel=1e-9)
    assert parts["ese_layers"].item() == pytest.approx(express, rel=1e-9)


def test_shallow_layers_count_less_the_deeper_they_are_and_the_first_is_not_the_table():
    assert depth_weight(1) == pytest.approx(1 / (1 + math.log(2)))
    assert [depth_weight(l) for l in (1, 2, 3)] == sorted(map(depth_weight, (1, 2, 3)))[::-1]  # noqa: E741


def test_one_layer_or_the_full_width_alone_leave_nothing_to_add():
    (only,) = layers(1)
    parts = EspressoLoss([8])([only], 5)
    assert parts["ese_layers"].item() == parts["ese_kd"].item() == 0
    assert EspressoLoss([4, 8])([only], 5)["ese_kd"].item() > 0


def test_gradients_match_finite_differences():
    # The target carries no gradient, so that it is held fixed here.
    x = layers(rows=6, d=5)[0].requires_grad_()
    target = principal_target(x, 3)
    assert torch.autograd.gradcheck(lambda y: compression(y, target, [2, 3]), x)
    shallow, last = layers(2, rows=6, d=5)
    shallow.requires_grad_()
    loss = EspressoLoss([2, 5], temperature=0.5)
    assert torch.autograd.gradcheck(lambda y: loss([y, last], 3)["ese_layers"], shallow)


def test_widths_of_one_batch_replace_all():
    states = layers()
    some = EspressoLoss([2, 4, 8])(states, 5, widths=[2, 8])
    only = EspressoLoss([2, 8])(states, 5)
    assert all(torch.equal(some[name], only[name]) for name in only)
