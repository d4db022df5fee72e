"""The combined regulariser: averages, layer maps, and that descending on it opens a prefix."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from domain_embeddings.core.losses import (
    AlignmentLoss,
    TokenLayout,
    alignment_components,
    soft_collapse,
    spectral_isotropy,
    token_statistics,
)

D = 6
WIDTHS = [2, 4, 6]
NAMES = ["soft_collapse_corr", "soft_collapse_var", "isotropy_cv", "isotropy_unif"]


def layers(count: int = 3) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = [
        torch.randn(64, 5, D, generator=generator, dtype=torch.float64) * 0.5 for _ in range(count)
    ]
    lengths = torch.randint(1, 6, (64,), generator=generator)
    return hidden, torch.arange(5)[None, :] < lengths[:, None]


def terms(hidden: Tensor, mask: Tensor, widths: list[int]) -> list[Tensor]:
    statistics = token_statistics(hidden, TokenLayout.from_masks(mask))
    collapse = soft_collapse(statistics, widths)
    return [*collapse, *spectral_isotropy(statistics.mean, widths)]


def test_components_are_means_over_layers_and_their_own_widths() -> None:
    hidden, mask = layers()
    parts = alignment_components(hidden, TokenLayout.from_masks(mask), WIDTHS)
    per_layer = [terms(states, mask, WIDTHS) for states in hidden]
    assert list(parts) == NAMES
    for k, name in enumerate(NAMES):
        values = torch.cat([own[k] for own in per_layer])
        assert len(values) == 3 * (2 if name.startswith("soft") else 3)
        torch.testing.assert_close(parts[name], values.mean())


def test_pairs_combine_each_layer_with_one_width() -> None:
    hidden, mask = layers()
    parts = alignment_components(hidden, TokenLayout.from_masks(mask), WIDTHS, mapping="pairs")
    per_layer = [terms(states, mask, [m]) for states, m in zip(hidden, WIDTHS, strict=True)]
    for k, name in enumerate(NAMES):
        torch.testing.assert_close(parts[name], torch.cat([own[k] for own in per_layer]).mean())


def test_loss_weighs_the_components() -> None:
    hidden, mask = layers()
    loss, parts = AlignmentLoss(WIDTHS, lambda_corr=50.0, lambda_var=0.2)(hidden, mask)
    isotropy = (parts["isotropy_cv"] + parts["isotropy_unif"]) / 2
    collapse = 50 * parts["soft_collapse_corr"] + 0.2 * parts["soft_collapse_var"]
    torch.testing.assert_close(loss, collapse + isotropy)


def test_full_width_alone_leaves_isotropy_only() -> None:
    hidden, mask = layers()
    loss, parts = AlignmentLoss([D])(hidden, mask)
    assert parts["soft_collapse_corr"].item() == parts["soft_collapse_var"].item() == 0
    torch.testing.assert_close(loss, (parts["isotropy_cv"] + parts["isotropy_unif"]) / 2)


def test_chunks_and_a_ready_layout_give_the_same_loss() -> None:
    hidden, mask = layers()
    loss = AlignmentLoss(WIDTHS)
    expected, _ = loss(hidden, mask)
    chunks = [[states[:20], states[20:]] for states in hidden]
    masks = [mask[:20], mask[20:]]
    for given in (masks, TokenLayout.from_masks(masks)):
        torch.testing.assert_close(loss(chunks, given)[0], expected, rtol=0, atol=1e-12)


def test_slope_matches_finite_differences() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = [torch.randn(4, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    layout = TokenLayout.from_masks(torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]))

    def total(*states: Tensor) -> Tensor:
        return torch.stack(list(alignment_components(states, layout, [1, 2, 4]).values()))

    assert torch.autograd.gradcheck(total, [states.requires_grad_() for states in hidden])


def test_small_batches_are_warned_of_once() -> None:
    hidden, mask = layers()
    loss = AlignmentLoss(WIDTHS)
    with pytest.warns(UserWarning, match="sees 63 sequences"):
        loss([states[:63] for states in hidden], mask[:63])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss([states[:63] for states in hidden], mask[:63])
        AlignmentLoss(WIDTHS)(hidden, mask)


def test_bad_settings_are_named() -> None:
    hidden, mask = layers()
    layout = TokenLayout.from_masks(mask)
    with pytest.raises(ValueError, match="got 3 and 2"):
        alignment_components(hidden, layout, [2, 6], mapping="pairs")
    with pytest.raises(ValueError, match="at least one layer"):
        alignment_components([], layout, WIDTHS)
    with pytest.raises(ValueError, match="d = 6"):
        alignment_components(hidden, layout, [2, 8])


def effective_rank(vectors: Tensor) -> float:
    """Return the exponential of the entropy of the covariance's normalised eigenvalues."""
    share = torch.linalg.eigvalsh(torch.cov(vectors.T)).clamp_min(1e-12)
    share = share / share.sum()
    return torch.exp(-(share * share.log()).sum()).item()


def test_descent_opens_a_collapsed_prefix() -> None:
    """All prefix dimensions repeat one direction, and the residual repeats the prefix."""
    generator = torch.Generator().manual_seed(0)
    d, m = 16, 4
    tokens = torch.randn(64, 10, d, generator=generator)
    mask = torch.ones(64, 10)
    encoder = 0.02 * torch.randn(d, d, generator=generator)
    encoder[:, :m] += 0.1 * torch.randn(d, 1, generator=generator)
    encoder[:, m : 2 * m] = encoder[:, :m] + 0.01 * torch.randn(d, m, generator=generator)
    encoder.requires_grad_()
    loss = AlignmentLoss([m, d], lambda_corr=10.0, lambda_var=1.0)
    optimiser = torch.optim.Adam([encoder], lr=0.02)

    before_loss, before = loss([tokens @ encoder], mask)
    before_rank = effective_rank((tokens @ encoder).mean(dim=1)[:, :m].detach())
    for _ in range(100):
        optimiser.zero_grad()
        loss([tokens @ encoder], mask)[0].backward()
        optimiser.step()
    after_loss, after = loss([tokens @ encoder], mask)
    after_rank = effective_rank((tokens @ encoder).mean(dim=1)[:, :m].detach())

    assert before_loss - after_loss > 1
    assert before_rank < 2
    assert after_rank > 3
    assert after["soft_collapse_corr"] < 0.1 * before["soft_collapse_corr"]
    assert after["soft_collapse_var"] < 0.5 * before["soft_collapse_var"]
    assert after["isotropy_unif"] < before["isotropy_unif"]
