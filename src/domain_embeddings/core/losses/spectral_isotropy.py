"""Spectral isotropy regularisation: a prefix should use all of its dimensions and directions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from domain_embeddings.core.losses.nesting import (
    check_widths,
    full_precision,
    growing_cosines,
    no_autocast,
)

SMALL_BATCH = 64


class SpectralIsotropy(NamedTuple):
    """The two terms of one layer, one value per width, float32 or float64.

    Args:
        cv: L_cv, shape (K,).
        unif: L_unif, shape (K,).
    """

    cv: Tensor
    unif: Tensor


def spectral_isotropy(
    pooled: Tensor, widths: Sequence[int], t: float = 2.0, eps: float = 1e-8
) -> SpectralIsotropy:
    """Return both terms of the spectral isotropy regulariser for every width of one layer.

    Args:
        pooled: Mean-pooled hidden states Z, shape (B, d) (TokenStatistics.mean or masked_mean).
        widths: K nested widths, strictly increasing, at most d.
        t: Sharpness of the uniformity term.
        eps: Added to the mean variance, in the unit of Z squared.

    Returns:
        L_cv, the coefficient of variation over the first m dimensions of their variance in the
        batch, and L_unif = log mean over i != k of exp(-2t (1 - cos(Z_i, Z_k))) of the prefixes;
        shape (K,) each. With fewer than two sequences both are 0.

    Raises:
        ValueError: If widths are out of range.

    Source: docs/method.md section 4 (L_SIR).
    """
    widths = check_widths(widths, pooled.shape[1])
    with no_autocast(pooled):
        z = full_precision(pooled)
        return SpectralIsotropy(_variation(z, widths, eps), _uniformity(z, widths, t))


def _variation(z: Tensor, widths: Sequence[int], eps: float) -> Tensor:
    """Return std(v) / (mean(v) + eps) of each prefix of the variances v."""
    variance = (z - z.mean(dim=0)).square().mean(dim=0)
    limit = torch.tensor(widths, device=z.device)
    below = (torch.arange(len(variance), device=z.device) < limit[:, None]).to(z.dtype)
    # Two passes: the difference of cumulative sums would lose all digits of a small spread.
    mean = below @ variance / limit
    spread = ((variance - mean[:, None]) * below).square().sum(dim=1) / limit
    positive = spread > 0
    std = torch.where(positive, torch.where(positive, spread, 1.0).sqrt(), 0.0)
    return std / (mean + eps)


def _uniformity(z: Tensor, widths: Sequence[int], t: float) -> Tensor:
    """Return log mean exp(-2t (1 - cos)) over the pairs of different rows, per width."""
    count = len(z)
    if count < 2:  # noqa: PLR2004 - no pair, and a zero that still belongs to the graph
        return (z * 0).sum().expand(len(widths))
    exponents = (growing_cosines(z, z, widths) - 1) * (2 * t)
    own = torch.eye(count, dtype=torch.bool, device=z.device)
    total = exponents.masked_fill(own, float("-inf")).flatten(1).logsumexp(dim=1)
    return total - math.log(count * (count - 1))


class SpectralIsotropyLoss(nn.Module):
    """L_SIR of one layer, averaged over widths (docs/method.md section 4).

    Args:
        widths: Nested widths, strictly increasing.
        t: Sharpness of the uniformity term.
    """

    def __init__(self, widths: Sequence[int], t: float = 2.0) -> None:
        """Keep the settings; there is nothing to learn."""
        super().__init__()
        self.widths = tuple(widths)
        self.t = t
        self._warned = False

    def forward(self, pooled: Tensor) -> Tensor:
        """Return the loss of mean-pooled hidden states (B, d) as a scalar."""
        self._warned = warn_small_batch(len(pooled), warned=self._warned)
        cv, unif = spectral_isotropy(pooled, self.widths, self.t)
        return (cv + unif).mean() / 2


def warn_small_batch(count: int, *, warned: bool) -> bool:
    """Warn, unless that was done, that the variances of a small batch are mostly noise.

    Args:
        count: Sequences in the batch.
        warned: Whether the caller has warned before.

    Returns:
        Whether the caller has warned by now.
    """
    if warned or count >= SMALL_BATCH:
        return warned
    floor = (2 / max(count - 1, 1)) ** 0.5
    warnings.warn(
        f"The isotropy loss sees {count} sequences: even equal variances then differ by "
        f"{floor:.2f} of their mean. Use at least {SMALL_BATCH} sequences in a batch.",
        stacklevel=3,
    )
    return True
