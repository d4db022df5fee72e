"""REZE's target and loss against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.losses import RezeLoss, reze_loss

D, SOURCES, COLUMNS, ROWS = 6, 3, 4, 10
WIDTHS = [1, 3, 6]


def shrinkage(columns: int = COLUMNS) -> Bundle:
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(2 * D, 2 * D)))[0]
    return Bundle(
        {
            "columns": np.arange(columns),
            "basis": basis[:, :columns],
            "mean": rng.normal(size=2 * D),
            "offset": rng.normal(size=(SOURCES, columns)),
            "scale": rng.uniform(0, 1, size=(SOURCES, columns)),
            "shrunk": np.ones((SOURCES, 2 * D), dtype=bool),
        }
    )


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    a, p = torch.randn(2, ROWS, D, generator=generator, dtype=torch.float64).to(dtype)
    r0 = torch.randn(ROWS, 2 * D, generator=generator, dtype=torch.float64).to(dtype)
    return a, p, r0, torch.arange(ROWS) % SOURCES


def oracle_target(bundle: Bundle, r0: np.ndarray, source: np.ndarray) -> np.ndarray:
    out = []
    for row, s in zip(r0, source, strict=True):
        z = bundle["basis"].T @ (row - bundle["mean"])
        change = bundle["offset"][s] + (bundle["scale"][s] - 1) * z
        out.append(row + bundle["basis"] @ change)
    return np.array(out)


def cosine(x: np.ndarray, y: np.ndarray) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def test_target_is_that_of_numpy() -> None:
    bundle = shrinkage()
    _, _, r0, source = batch()
    target = RezeLoss(bundle, dtype=torch.float64).target(r0, source)
    expected = oracle_target(bundle, r0.numpy(), source.numpy())
    np.testing.assert_allclose(target, expected, atol=1e-12)
    half = RezeLoss(bundle).target(r0.half(), source)
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half, expected, atol=5e-3)


def test_full_loss_is_the_cosine_distance_of_relation_vectors() -> None:
    bundle = shrinkage()
    a, p, r0, source = batch()
    goal = oracle_target(bundle, r0.numpy(), source.numpy())
    expected = np.mean(
        [
            1 - cosine(np.concatenate([unit(x), unit(y)]), g)
            for x, y, g in zip(a.numpy(), p.numpy(), goal, strict=True)
        ]
    )
    loss = RezeLoss(bundle, dtype=torch.float64)(a, p, r0, source)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_nested_loss_cuts_and_normalises_each_half(weights: list[float] | None) -> None:
    bundle = shrinkage()
    a, p, r0, source = batch()
    goal = oracle_target(bundle, r0.numpy(), source.numpy())
    per_width = []
    for m in WIDTHS:
        rows = [
            1
            - cosine(
                np.concatenate([unit(x[:m]), unit(y[:m])]),
                np.concatenate([unit(g[:m]), unit(g[D : D + m])]),
            )
            for x, y, g in zip(a.numpy(), p.numpy(), goal, strict=True)
        ]
        per_width.append(np.mean(rows))
    loss = RezeLoss(bundle, WIDTHS, weights, dtype=torch.float64)(a, p, r0, source)
    assert loss.item() == pytest.approx(np.average(per_width, weights=weights), abs=1e-12)


@pytest.mark.parametrize("widths", [None, WIDTHS])
def test_slope_matches_finite_differences(widths: list[int] | None) -> None:
    a, p, goal, _ = batch()
    assert torch.autograd.gradcheck(
        lambda x, y: reze_loss(x, y, goal, widths), (a.requires_grad_(), p.requires_grad_())
    )


@pytest.mark.parametrize("widths", [None, WIDTHS])
def test_gradient_reaches_the_model_only(widths: list[int] | None) -> None:
    a, p, r0, source = (part.clone() for part in batch(torch.float32))
    for part in (a, p, r0):
        part.requires_grad_()
    loss = RezeLoss(shrinkage(), widths)
    goal = loss.target(r0, source)
    assert not goal.requires_grad
    loss(a, p, r0, source).backward()
    reze_loss(a, p, goal.requires_grad_(), widths).backward()
    assert goal.grad is None
    assert a.grad is not None
    assert p.grad is not None
    assert a.grad.abs().sum() > 0
    assert p.grad.abs().sum() > 0
    assert r0.grad is None


@pytest.mark.parametrize("widths", [None, WIDTHS])
def test_without_touched_columns_the_reference_is_the_target(widths: list[int] | None) -> None:
    _, _, r0, source = batch()
    halves = torch.nn.functional.normalize(r0.view(ROWS, 2, D), dim=2)
    loss = RezeLoss(shrinkage(0), widths, dtype=torch.float64)
    reference = halves.reshape(ROWS, 2 * D)
    assert torch.equal(loss.target(reference, source), reference)
    assert loss(halves[:, 0], halves[:, 1], reference, source).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("widths", [None, WIDTHS])
def test_lengths_of_embeddings_and_target_do_not_matter(widths: list[int] | None) -> None:
    a, p, goal, _ = batch()
    expected = reze_loss(a, p, goal, widths)
    torch.testing.assert_close(reze_loss(3 * a, 0.2 * p, 7 * goal, widths), expected)


@pytest.mark.parametrize("widths", [None, WIDTHS])
def test_zero_vectors_have_a_defined_loss_and_slope(widths: list[int] | None) -> None:
    a = torch.zeros(2, D, requires_grad=True)
    loss = reze_loss(a, torch.zeros(2, D), torch.zeros(2, 2 * D), widths)
    loss.backward()
    assert loss.item() == 1
    assert a.grad is not None
    assert torch.isfinite(a.grad).all()


@pytest.mark.parametrize("widths", [None, WIDTHS])
def test_autocast_changes_nothing(widths: list[int] | None) -> None:
    a, p, r0, source = batch(torch.float32)
    a, p = a.bfloat16(), p.bfloat16()
    loss = RezeLoss(shrinkage(), widths)
    expected = loss(a.float(), p.float(), r0, source)
    with torch.autocast("cpu", torch.bfloat16):
        actual = loss(a, p, r0, source)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)


def test_buffers_are_copies_that_follow_the_module() -> None:
    bundle = shrinkage()
    # The dtype of the arrays, so that nothing but an explicit copy separates them.
    loss = RezeLoss(bundle, dtype=torch.float64)
    before = loss.basis.clone()
    bundle["basis"][:] = 0
    assert torch.equal(loss.basis, before)
    assert set(loss.state_dict()) == {"basis", "mean", "offset", "scale"}


def test_bad_input_is_named() -> None:
    a, p, r0, _ = batch()
    with pytest.raises(ValueError, match=r"target \(B, 2d\)"):
        reze_loss(a, p, r0[:, :D])
    with pytest.raises(ValueError, match=r"target \(B, 2d\)"):
        reze_loss(a, p[:5], r0)
    with pytest.raises(ValueError, match="d = 6"):
        reze_loss(a, p, r0, [3, 7])
    arrays = dict(shrinkage().arrays) | {"scale": np.ones((SOURCES, 2))}
    with pytest.raises(ValueError, match="offset and scale"):
        RezeLoss(Bundle(arrays))
