"""How much each nested width counts in the main loss: by a rule, as told, or as learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from domain_embeddings.core.losses.nesting import no_autocast, width_weights

FULL = 3
Weights = Literal["equal", "full", "dynamic"] | Sequence[float]


class WidthWeighting(nn.Module):
    """Turn the losses of the nested widths into one.

    ``dynamic`` learns one log-variance s_m per width: the loss is
    sum_m (exp(-s_m) L_m + s_m) / sum_m exp(-s_m), where the denominator carries no gradient. Its
    optimum is s_m = log L_m, and the weights of the L_m always sum to 1, so that the main loss
    keeps its size beside the regularisers. With s = 0 it is the plain mean.

    Args:
        weights: ``equal``, ``full`` (the full width counts `FULL` times as much as all others
            together), ``dynamic``, or one non-negative weight per width; scaled to sum 1.
        widths: K nested widths.

    Source:
        docs/method.md section 3.
    """

    def __init__(self, weights: Weights, widths: Sequence[int]) -> None:
        """Start from equal weights where they are learned."""
        super().__init__()
        self.count, self.rule = len(widths), weights
        self.log_variance: nn.Parameter | None = None
        if weights == "dynamic":
            self.log_variance = nn.Parameter(torch.zeros(len(widths)))

    def forward(self, losses: Tensor, chosen: Sequence[int]) -> Tensor:
        """Return the weighted mean.

        Args:
            losses: Loss of each chosen width, (K',).
            chosen: Which of the K widths they are, ascending.

        Returns:
            Scalar; a gradient also reaches the log-variances.
        """
        # The product of two vectors is a matrix product to autocast, which would round the loss.
        with no_autocast(losses):
            if self.log_variance is not None:
                s = self.log_variance[list(chosen)].to(losses.dtype)
                precision = torch.exp(-s)
                return (precision * losses + s).sum() / precision.sum().detach()
            return losses @ width_weights(self._weights(chosen), losses)

    def _weights(self, chosen: Sequence[int]) -> list[float] | None:
        """Return the given weights of the chosen widths, or None if they are equal."""
        if not isinstance(self.rule, str):
            return [self.rule[k] for k in chosen]
        if self.rule == "full" and chosen[-1] == self.count - 1:
            others = len(chosen) - 1
            return [1.0] * others + [float(FULL * max(others, 1))]
        return None

    def learned(self) -> Tensor | None:
        """Return the learned weights of all widths, (K,) with sum 1, or None if they are given."""
        if self.log_variance is None:
            return None
        return torch.softmax(-self.log_variance.detach(), dim=0)
