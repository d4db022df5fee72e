"""ESE: every layer learns to embed, and every prefix to hold the principal components."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, mse_loss

from domain_embeddings.core.losses.info_nce import nested_info_nce
from domain_embeddings.core.losses.nesting import check_widths, full_precision, no_autocast


def principal_target(pooled: Tensor, width: int) -> Tensor:
    """Return what the leading coordinates should hold: the principal components by importance.

    A = softmax(X^T X / sqrt(d)), row by row, says how much dimensions depend on each other; the
    left singular vectors U of A and its singular values S weigh the directions.

    Args:
        pooled: Pooled hidden states X of one layer, (n, d), not normalised.
        width: Number of components m.

    Returns:
        X U_m S_m of shape (n, m), without gradient. A singular vector has no sign of its own: the
        one is taken under which component j agrees with coordinate j.

    Source:
        arXiv 2402.14776; docs/method.md section 5b.
    """
    with torch.no_grad(), no_autocast(pooled):
        x = full_precision(pooled)
        a = torch.softmax(x.T @ x / x.shape[1] ** 0.5, dim=1)
        # A is not symmetric; A A^T has the same left singular vectors, and squared values.
        # On the CPU: eigh of a GPU is unreliable in float32, and no faster at this size.
        squares, vectors = (part.to(x.device) for part in torch.linalg.eigh((a @ a.T).cpu()))
        squares, vectors = squares.flip(0)[:width], vectors.flip(1)[:, :width]
        target = x @ (vectors * squares.clamp_min(0).sqrt())
        agrees = (target * x[:, :width]).sum(dim=0) >= 0
        return torch.where(agrees, target, -target)


def compression(pooled: Tensor, target: Tensor, widths: Sequence[int]) -> Tensor:
    """Return how far each prefix is from the principal components.

    Args:
        pooled: X, (n, d).
        target: Output of `principal_target` for the largest of the widths.
        widths: K widths.

    Returns:
        Mean squared error plus KL(softmax(target) || softmax(prefix)), the softmax over the m
        coordinates and the mean over texts, (K,).
    """
    with no_autocast(pooled):
        x = full_precision(pooled)
        values = []
        for width in widths:
            prefix, goal = x[:, :width], target[:, :width]
            divergence = kl_div(
                prefix.log_softmax(dim=1), goal.softmax(dim=1), reduction="batchmean"
            )
            values.append(mse_loss(prefix, goal) + divergence)
        return torch.stack(values) if values else x.new_zeros(0)


def depth_weight(layer: int) -> float:
    """Return 1 / (1 + ln(1 + l)) of layer l, counted from 1."""
    return 1 / (1 + math.log(1 + layer))


class EspressoLoss(nn.Module):
    """What ESE adds to the nested loss of the last layer.

    With L(X) the InfoNCE and K(X) the `compression` of a layer's pooled states, each averaged over
    the widths (K over those below d), and n layers:
    ese_layers = 1/(n-1) sum_{l<n} w_l L(X_l), ese_kd = K(X_n) + 1/(n-1) sum_{l<n} w_l K(X_l).

    Args:
        widths: Nested widths, strictly increasing.
        temperature: Divides the cosines.
        symmetric: Also score positives against anchors.

    Source:
        arXiv 2402.14776; docs/method.md section 5b.
    """

    def __init__(
        self, widths: Sequence[int], *, temperature: float = 0.05, symmetric: bool = False
    ) -> None:
        """Keep the settings; there is nothing to learn."""
        super().__init__()
        self.widths = tuple(widths)
        self.temperature = temperature
        self.symmetric = symmetric

    def forward(
        self,
        layers: Sequence[Tensor],
        pairs: int,
        mask: Tensor | None = None,
        widths: Sequence[int] | None = None,
    ) -> dict[str, Tensor]:
        """Return both terms.

        Args:
            layers: Pooled hidden states of layers 1 to n, (T, d) each: anchors, then positives,
                then mined negatives.
            pairs: Number of anchors B.
            mask: See `nested_info_nce`.
            widths: Widths of this batch; None for all.

        Returns:
            Scalars ese_layers and ese_kd, to be added with weight 1.

        Raises:
            ValueError: If shapes or widths do not fit.
        """
        d = layers[-1].shape[1]
        chosen = check_widths(widths or self.widths, d)
        inner = [width for width in chosen if width < d]
        last = len(layers)
        share = 1 / max(1, last - 1)
        nothing = full_precision(layers[-1]).new_zeros(())
        express, compress = nothing, nothing
        for number, pooled in enumerate(layers, start=1):
            weight = 1.0 if number == last else share * depth_weight(number)
            if inner:
                target = principal_target(pooled, inner[-1])
                compress = compress + weight * compression(pooled, target, inner).mean()
            if number < last:
                loss, _ = nested_info_nce(
                    pooled[:pairs],
                    pooled[pairs:],
                    chosen,
                    temperature=self.temperature,
                    mask=mask,
                    symmetric=self.symmetric,
                )
                express = express + weight * loss
        return {"ese_layers": express, "ese_kd": compress}
