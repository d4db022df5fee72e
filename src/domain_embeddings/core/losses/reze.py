"""REZE's training part: hold every pair near its reference relation, minus its source's bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.losses.nesting import (
    check_widths,
    full_precision,
    inverse_norms,
    no_autocast,
    prefix_blocks,
    width_weights,
)

if TYPE_CHECKING:
    from domain_embeddings.core.bundle import Bundle


def reze_target(  # noqa: PLR0913 - one argument per symbol of the formula
    r0: Tensor, source: Tensor, *, basis: Tensor, mean: Tensor, offset: Tensor, scale: Tensor
) -> Tensor:
    """Return the reference relation vectors with the bias of their sources shrunk.

    Only the K touched columns of the eigenspace enter, so no D x D product is formed. No gradient
    passes.

    Args:
        r0: Relation vectors of the reference model, (B, D), D = 2d.
        source: Source of each pair, int64 (B,), from 0 to S - 1.
        basis: Touched columns of W, (D, K).
        mean: Global mean u, (D,).
        offset: Additive change of z per source, (S, K).
        scale: Factor on z per source, (S, K).

    Returns:
        rhat = r0 + basis (offset_s + (scale_s - 1) * basis^T (r0 - u)), (B, D), in the dtype of
        ``basis``.

    Source: docs/method.md sections 1 and 2.
    """
    with torch.no_grad(), no_autocast(r0):
        r0 = r0.to(basis.dtype)
        z = (r0 - mean) @ basis
        change = torch.addcmul(offset[source], scale[source] - 1, z)
        return torch.addmm(r0, change, basis.T)


def reze_loss(
    anchors: Tensor,
    positives: Tensor,
    target: Tensor,
    widths: Sequence[int] | None = None,
    weights: Sequence[float] | Tensor | None = None,
) -> Tensor:
    """Return the mean cosine distance between relation vectors and their targets.

    Args:
        anchors: Shape (B, d); normalised or not, they are here.
        positives: Shape (B, d).
        target: rhat, shape (B, 2d); no gradient passes to it.
        widths: None compares whole relation vectors. Nested widths compare
            [prefix(a, m); prefix(p, m)] with [prefix(rhat_a, m); prefix(rhat_p, m)], where rhat_a
            and rhat_p are the halves of rhat: each half is cut and normalised by itself. That makes
            the cosine of a width the mean of the cosines of the two halves.
        weights: One weight per width, scaled to sum 1; None for equal ones.

    Returns:
        Mean over pairs (and widths) of 1 - cos, a scalar, float32 or float64.

    Raises:
        ValueError: If shapes or widths do not fit.

    Source: docs/method.md section 2.
    """
    rows, d = anchors.shape
    if positives.shape != anchors.shape or target.shape != (rows, 2 * d):
        msg = (
            "anchors and positives (B, d) need a target (B, 2d), got "
            f"{tuple(anchors.shape)}, {tuple(positives.shape)} and {tuple(target.shape)}"
        )
        raise ValueError(msg)
    with no_autocast(anchors):
        a, p = full_precision(anchors), full_precision(positives)
        goal = full_precision(target.detach()).to(a.dtype)
        if widths is None:
            relation = torch.cat([prefix(a, d), prefix(p, d)], dim=1)
            cosines = (prefix(relation, 2 * d) * prefix(goal, 2 * d)).sum(dim=1)
            return 1 - cosines.mean()
        widths = check_widths(widths, d)
        near = _prefix_cosines(a, goal[:, :d], widths) + _prefix_cosines(p, goal[:, d:], widths)
        per_width = 1 - near.mean(dim=1) / 2
        return per_width @ width_weights(weights, per_width)


def _prefix_cosines(x: Tensor, y: Tensor, widths: Sequence[int]) -> Tensor:
    """Return the cosines of equal rows at every width, shape (K, B)."""
    left, right = prefix_blocks(x, widths), prefix_blocks(y, widths)
    products = [(one * other).sum(dim=1) for one, other in zip(left, right, strict=True)]
    return torch.stack(products).cumsum(dim=0) * inverse_norms(left) * inverse_norms(right)


class RezeLoss(nn.Module):
    """L_reze for the shrinkage that the offline part computed (docs/method.md section 2).

    Args:
        shrinkage: Bundle with arrays basis (D, K), mean (D,), offset (S, K) and scale (S, K).
            K = 0 makes the reference itself the target.
        widths: Nested widths, or None to compare whole relation vectors.
        weights: One weight per width, scaled to sum 1; None for equal ones.
        dtype: Of the buffers and the target.
    """

    basis: Tensor
    mean: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(
        self,
        shrinkage: Bundle,
        widths: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Copy the bundle's arrays into buffers, so that they follow the module's device."""
        super().__init__()
        self.widths = None if widths is None else tuple(widths)
        self.weights = None if weights is None else tuple(weights)
        for name in ("basis", "mean", "offset", "scale"):
            # A copy: the array may be a read-only memory map.
            values = torch.from_numpy(np.array(shrinkage[name])).to(dtype)
            self.register_buffer(name, values)
        d, columns = self.basis.shape
        sources = (len(self.offset), columns)
        if self.mean.shape != (d,) or not self.offset.shape == self.scale.shape == sources:
            msg = (
                f"a shrinkage with basis {(d, columns)} needs mean {(d,)} and offset and scale "
                f"{sources}, got {tuple(self.mean.shape)}, {tuple(self.offset.shape)} and "
                f"{tuple(self.scale.shape)}"
            )
            raise ValueError(msg)

    def target(self, r0: Tensor, source: Tensor) -> Tensor:
        """Return rhat (B, D) of reference vectors r0 (B, D) and their sources (B,)."""
        return reze_target(
            r0,
            source,
            basis=self.basis,
            mean=self.mean,
            offset=self.offset,
            scale=self.scale,
        )

    def forward(
        self,
        anchors: Tensor,
        positives: Tensor,
        r0: Tensor,
        source: Tensor,
        widths: Sequence[int] | None = None,
    ) -> Tensor:
        """Return L_reze of a batch.

        Args:
            anchors: Embeddings of the anchors, (B, d).
            positives: Embeddings of their positives, (B, d).
            r0: Relation vectors of the reference model, (B, 2d).
            source: Source of each pair, int64 (B,).
            widths: Widths of this batch if the loss is nested; None for all.

        Returns:
            Scalar; the gradient reaches anchors and positives only.

        Raises:
            ValueError: If shapes or widths do not fit.
        """
        nested = None if self.widths is None else (widths or self.widths)
        return reze_loss(anchors, positives, self.target(r0, source), nested, self.weights)
