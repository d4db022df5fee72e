"""Soft collapse regularisation: prefix and residual should not say the same thing twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from domain_embeddings.core.losses.nesting import check_widths, no_autocast
from domain_embeddings.core.losses.tokens import (
    Hidden,
    TokenLayout,
    TokenStatistics,
    token_statistics,
)
from domain_embeddings.core.training.distributed import Shares, sum_up, total

Threshold = float | Literal["auto"]


class SoftCollapse(NamedTuple):
    """The two terms of one layer, one value per width below d, float32 or float64.

    Args:
        corr: L_corr, shape (K',).
        var: L_var, shape (K',).
    """

    corr: Tensor
    var: Tensor


def soft_collapse(
    statistics: TokenStatistics,
    widths: Sequence[int],
    tau: Threshold = "auto",
    shares: Shares | None = None,
) -> SoftCollapse:
    """Return both terms of the soft collapse regulariser for every width of one layer.

    The width d has no residual and is skipped: there may be fewer values than widths, even none.
    The correlations R are computed once for all widths, and only the blocks that lie between some
    prefix and its residual.

    Args:
        statistics: Standardised tokens of one layer (token_statistics).
        widths: Nested widths, strictly increasing, at most d.
        tau: Correlations up to this size are not penalised; ``auto`` is 2 / sqrt(tokens), twice the
            standard deviation that independent dimensions have.
        shares: What each of several workers holds of the batch, if the statistics are those of one
            of them; the terms are then those of the whole batch, on every worker.

    Returns:
        L_corr = mean over the block R[:m, m:] of max(0, |R| - tau)^2, and
        L_var = max(0, 1 - s_pre) + max(0, 1 - s_res) / 2, where s is the standard deviation over
        the tokens of a sequence, averaged over all sequences and the dimensions of prefix or
        residual; shape (K',) each.

    Raises:
        ValueError: If widths or tau are out of range.

    Source: docs/method.md section 4 (L_SCR).
    """
    scaled, _, std = statistics
    d = scaled.shape[1]
    inner = [width for width in check_widths(widths, d) if width < d]
    tokens = len(scaled) if shares is None else sum(shares.tokens)
    threshold = 2.0 / tokens**0.5 if tau == "auto" else float(tau)
    if threshold < 0:
        msg = f"tau must be 'auto' or at least 0, got {tau}"
        raise ValueError(msg)
    if not inner:
        nothing = std.new_zeros(0)
        return SoftCollapse(nothing, nothing)
    with no_autocast(scaled):
        if shares is None:
            corr = cast("Any", _BlockPenalty.apply)(
                scaled, len(std), tuple(inner), threshold, False
            )
            return SoftCollapse(corr, _variance_term(std.mean(dim=0), inner))
        count = sum(shares.sequences)
        corr = cast("Any", _BlockPenalty.apply)(scaled, count, tuple(inner), threshold, True)
        return SoftCollapse(corr, _variance_term(total(std.sum(dim=0)) / count, inner))


def _variance_term(per_dimension: Tensor, widths: Sequence[int]) -> Tensor:
    """Return L_var of each width, shape (K',), from mean standard deviations (d,)."""
    below = _below(widths, per_dimension)
    mean_prefix = below @ per_dimension / below.sum(dim=1)
    mean_residual = (1 - below) @ per_dimension / (1 - below).sum(dim=1)
    return torch.relu(1 - mean_prefix) + 0.5 * torch.relu(1 - mean_residual)


def _below(widths: Sequence[int], like: Tensor) -> Tensor:
    """Return (K, d) indicators of the dimensions inside each prefix, for ``like`` (..., d)."""
    dimension = torch.arange(like.shape[-1], device=like.device)
    limit = torch.tensor(widths, device=like.device)
    return (dimension[None, :] < limit[:, None]).to(like.dtype)


class _BlockPenalty(torch.autograd.Function):
    """Thresholded squares of R between every prefix and its residual.

    R is zero where no width separates row and column, so the d x d matrix can be thresholded and
    summed as a whole; its slope is one product with the tokens.
    """

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - autograd functions take positions only
        ctx: Any,
        scaled: Tensor,
        count: int,
        widths: tuple[int, ...],
        threshold: float,
        shared: bool,
    ) -> Tensor:
        """Return L_corr of each width, shape (K',), from scaled tokens (T, d)."""
        d = scaled.shape[1]
        correlation = scaled.new_zeros(d, d)
        for low, high in pairwise((0, *widths)):
            correlation[low:high, high:] = scaled[:, low:high].T @ scaled[:, high:]
        if shared:
            correlation = sum_up(correlation)
        correlation /= count
        excess = torch.nn.functional.softshrink(correlation, threshold)
        below = _below(widths, scaled)
        size = below.sum(dim=1) * (1 - below).sum(dim=1)
        ctx.save_for_backward(scaled, excess, below, size)
        ctx.count, ctx.shared = count, shared
        return ((below @ excess.square()) * (1 - below)).sum(dim=1) / size

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_corr: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the slope of the scaled tokens (T, d)."""
        scaled, excess, below, size = ctx.saved_tensors
        if ctx.shared:
            # R is the same on all workers, so the slopes they found for it differ in these only.
            d_corr = sum_up(d_corr)
        with no_autocast(scaled):
            # W_uv: how much each entry of R counts, summed over the widths between u and v.
            weight = (below * (2 * d_corr / (size * ctx.count))[:, None]).T @ (1 - below)
            slope = weight.mul_(excess)
            return scaled @ (slope + slope.T), None, None, None, None


class SoftCollapseLoss(nn.Module):
    """L_SCR of one layer, averaged over the widths below d (docs/method.md section 4).

    Args:
        widths: Nested widths, strictly increasing.
        tau: Threshold of the correlations, or ``auto``.
        lambda_corr: Weight of the correlation term.
        lambda_var: Weight of the variance term.
    """

    def __init__(
        self,
        widths: Sequence[int],
        tau: Threshold = "auto",
        lambda_corr: float = 1.0,
        lambda_var: float = 0.1,
    ) -> None:
        """Keep the settings; there is nothing to learn."""
        super().__init__()
        self.widths = tuple(widths)
        self.tau = tau
        self.lambda_corr = lambda_corr
        self.lambda_var = lambda_var

    def forward(self, hidden: Hidden, mask: Hidden) -> Tensor:
        """Return the loss of hidden states (B, L, d) and their mask (B, L), or of chunks of them.

        Args:
            hidden: Hidden states of one layer, one tensor or one per chunk.
            mask: Attention mask of each.

        Returns:
            Scalar; 0 if no width is below d.

        Raises:
            ValueError: If shapes or widths do not fit.
        """
        statistics = token_statistics(hidden, TokenLayout.from_masks(mask))
        corr, var = soft_collapse(statistics, self.widths, self.tau)
        return (self.lambda_corr * corr + self.lambda_var * var).sum() / max(len(corr), 1)
