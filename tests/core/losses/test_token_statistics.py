"""Token statistics do not depend on how a batch was cut, padded or packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from domain_embeddings.core.losses import TokenLayout, masked_mean, token_statistics

LENGTHS = [5, 2, 1, 7, 3, 4]
D = 6
EPS = 1e-5


def sequences(lengths: list[int] = LENGTHS, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, D, generator=generator, dtype=torch.float64) for n in lengths]


def pad(parts: list[Tensor], extra: int = 0) -> tuple[Tensor, Tensor]:
    """Pad with rubbish, which no statistic may see."""
    longest = max(map(len, parts)) + extra
    hidden = torch.full((len(parts), longest, D), 1e6, dtype=torch.float64)
    mask = torch.zeros(len(parts), longest, dtype=torch.int64)
    for i, part in enumerate(parts):
        hidden[i, : len(part)] = part
        mask[i, : len(part)] = 1
    return hidden, mask


def test_statistics_are_those_of_a_loop() -> None:
    parts = sequences()
    hidden, mask = pad(parts)
    scaled, mean, std = token_statistics(hidden, TokenLayout.from_masks(mask))
    for i, part in enumerate(parts):
        x = part.numpy()
        deviation = np.maximum(x.std(axis=0), EPS)
        np.testing.assert_allclose(mean[i], x.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(std[i], deviation, atol=1e-12)
        first = sum(LENGTHS[:i])
        expected = (x - x.mean(axis=0)) / deviation / len(x) ** 0.5
        np.testing.assert_allclose(scaled[first : first + len(x)], expected, atol=1e-12)


@pytest.mark.parametrize("cuts", [[6], [3, 3], [1, 4, 1], [1] * 6])
def test_chunks_of_any_padding_give_what_one_batch_gives(cuts: list[int]) -> None:
    parts = sequences()
    hidden, mask = pad(parts)
    expected = token_statistics(hidden, TokenLayout.from_masks(mask))
    first, chunks = 0, []
    for extra, size in enumerate(cuts):
        chunks.append(pad(parts[first : first + size], extra))
        first += size
    layout = TokenLayout.from_masks([chunk_mask for _, chunk_mask in chunks])
    actual = token_statistics([chunk for chunk, _ in chunks], layout)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_packed_tokens_give_what_the_padded_batch_gives() -> None:
    parts = sequences()
    hidden, mask = pad(parts)
    expected = token_statistics(hidden, TokenLayout.from_masks(mask))
    owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(LENGTHS))
    actual = token_statistics(torch.cat(parts), TokenLayout.from_packed(owner, len(parts)))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_packed_tokens_may_come_in_any_order() -> None:
    parts = sequences()
    owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(LENGTHS))
    order = torch.randperm(len(owner), generator=torch.Generator().manual_seed(2))
    sorted_layout = TokenLayout.from_packed(owner, len(parts))
    mixed_layout = TokenLayout.from_packed(owner[order], len(parts))
    expected = token_statistics(torch.cat(parts), sorted_layout)
    actual = token_statistics(torch.cat(parts)[order], mixed_layout)
    torch.testing.assert_close(actual.scaled, expected.scaled[order])
    torch.testing.assert_close(actual.std, expected.std)


def test_gradient_of_chunks_is_that_of_the_padded_batch() -> None:
    parts = sequences()
    hidden, mask = pad(parts)
    weight = torch.randn(
        sum(LENGTHS), D, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )

    def slopes(inputs: list[Tensor], masks: list[Tensor]) -> Tensor:
        leaves = [part.clone().requires_grad_() for part in inputs]
        scaled, mean, std = token_statistics(leaves, TokenLayout.from_masks(masks))
        ((scaled * weight).sum() + mean.square().sum() + std.square().sum()).backward()
        found = [leaf.grad[own.bool()] for leaf, own in zip(leaves, masks, strict=True)]
        return torch.cat(found)

    one, two = pad(parts[:2]), pad(parts[2:], extra=3)
    torch.testing.assert_close(
        slopes([one[0], two[0]], [one[1], two[1]]), slopes([hidden], [mask]), rtol=0, atol=1e-12
    )


def test_slope_matches_finite_differences() -> None:
    hidden, mask = pad(sequences([4, 1, 3]))
    hidden = torch.where(mask[:, :, None] == 1, hidden, 0.0).requires_grad_()
    layout = TokenLayout.from_masks(mask)
    assert torch.autograd.gradcheck(lambda h: token_statistics(h, layout), hidden)


def test_padding_receives_no_gradient() -> None:
    hidden, mask = pad(sequences(), extra=2)
    hidden.requires_grad_()
    scaled, mean, std = token_statistics(hidden, TokenLayout.from_masks(mask))
    (scaled.sum() + mean.sum() + std.sum()).backward()
    assert hidden.grad is not None
    assert not hidden.grad[mask == 0].any()
    assert hidden.grad[mask == 1].any()


@given(st.integers(0, 1_000), st.floats(0.1, 50), st.floats(-20, 20))
@settings(max_examples=25, deadline=None)
def test_standardised_tokens_ignore_scale_and_shift(seed: int, scale: float, shift: float) -> None:
    hidden, mask = pad(sequences(seed=seed))
    layout = TokenLayout.from_masks(mask)
    torch.testing.assert_close(
        token_statistics(hidden * scale + shift, layout).scaled,
        token_statistics(hidden, layout).scaled,
        rtol=0,
        atol=1e-8,
    )


@pytest.mark.parametrize("case", ["one token", "constant", "empty sequence"])
def test_degenerate_sequences_are_defined_and_have_a_finite_slope(case: str) -> None:
    hidden = torch.randn(2, 3, D, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 3, dtype=torch.int64)
    if case == "one token":
        mask[0, 1:] = 0
    elif case == "constant":
        hidden[0] = 0.7
    else:
        mask[0] = 0
    hidden.requires_grad_()
    scaled, mean, std = token_statistics(hidden, TokenLayout.from_masks(mask))
    (scaled.square().sum() + mean.sum() + std.sum()).backward()
    assert torch.isfinite(scaled).all()
    assert (std[0] == torch.tensor(EPS)).all()
    assert hidden.grad is not None
    assert torch.isfinite(hidden.grad).all()
    assert hidden.grad.abs().max() < 10
    assert mean[0].any() == (case != "empty sequence")


def test_a_deviation_at_its_lower_bound_has_no_slope() -> None:
    noise = torch.randn(2, 4, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise[0] *= EPS / 10
    noise.requires_grad_()
    std = token_statistics(noise, TokenLayout.from_masks(torch.ones(2, 4))).std
    std.sum().backward()
    assert noise.grad is not None
    assert not noise.grad[0].any()
    assert noise.grad[1].any()


def test_mean_is_the_masked_mean() -> None:
    hidden, mask = pad(sequences())
    pooled = masked_mean(hidden, mask)
    torch.testing.assert_close(pooled, token_statistics(hidden, TokenLayout.from_masks(mask)).mean)
    torch.testing.assert_close(pooled, torch.stack([part.mean(dim=0) for part in sequences()]))
    assert not masked_mean(hidden, torch.zeros_like(mask)).any()


def test_autocast_statistics_are_float32() -> None:
    hidden, mask = pad(sequences())
    half = torch.where(mask[:, :, None] == 1, hidden, 0.0).bfloat16()
    layout = TokenLayout.from_masks(mask)
    expected = token_statistics(half.float(), layout)
    with torch.autocast("cpu", torch.bfloat16):
        actual = token_statistics(half, layout)
        pooled = masked_mean(half, mask)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)
    torch.testing.assert_close(pooled, expected.mean)


def test_a_batch_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no valid token in 2 sequences"):
        TokenLayout.from_masks(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="no valid token"):
        TokenLayout.from_packed(torch.zeros(0, dtype=torch.int64), 2)


def test_hidden_states_of_another_layout_are_refused() -> None:
    hidden, mask = pad(sequences())
    layout = TokenLayout.from_masks([mask[:3], mask[3:]])
    with pytest.raises(ValueError, match="1 chunks of hidden states for 2 masks"):
        token_statistics(hidden, layout)
    with pytest.raises(ValueError, match="9 tokens for a layout of 8"):
        token_statistics(
            torch.ones(9, D), TokenLayout.from_packed(torch.zeros(8, dtype=torch.int64), 1)
        )
