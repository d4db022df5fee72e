"""L_align of MIC: soft collapse and spectral isotropy over layers and widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from domain_embeddings.core.losses.soft_collapse import Threshold, soft_collapse
from domain_embeddings.core.losses.spectral_isotropy import spectral_isotropy, warn_small_batch
from domain_embeddings.core.losses.tokens import Hidden, TokenLayout, token_statistics
from domain_embeddings.core.training.distributed import Shares, gather, shares

Mapping = Literal["grid", "pairs"]


def alignment_components(  # noqa: PLR0913 - one argument per choice
    layers: Sequence[Hidden],
    layout: TokenLayout,
    widths: Sequence[int],
    *,
    tau: Threshold = "auto",
    mapping: Mapping = "grid",
    shares: Shares | None = None,
) -> dict[str, Tensor]:
    """Return the four terms of L_align, each averaged over layers and widths.

    The soft collapse terms are averaged over the (layer, width) pairs whose width is below d: the
    width d has no residual and does not dilute the mean. The isotropy terms are averaged over all
    pairs.

    Args:
        layers: Hidden states of each chosen layer, in the chunks of the layout.
        layout: Where the valid tokens are; the same for all layers.
        widths: Nested widths, strictly increasing, at most d.
        tau: Threshold of the correlations, or ``auto``.
        mapping: ``grid`` combines every layer with every width, ``pairs`` the k-th with the k-th.
        shares: What each of several workers holds of the batch, if this is the part of one of them;
            the terms are then those of the whole batch, on every worker.

    Returns:
        Scalars soft_collapse_corr (L_corr), soft_collapse_var (L_var), isotropy_cv (L_cv) and
        isotropy_unif (L_unif), unweighted; those without any pair are 0.

    Raises:
        ValueError: If there is no layer, widths are out of range, or ``pairs`` finds other numbers
            of layers and widths.

    Source: docs/method.md section 4.
    """
    if not layers:
        msg = "at least one layer is needed"
        raise ValueError(msg)
    terms: dict[str, list[Tensor]] = {
        "soft_collapse_corr": [],
        "soft_collapse_var": [],
        "isotropy_cv": [],
        "isotropy_unif": [],
    }
    for hidden, own in zip(layers, _widths_of(len(layers), widths, mapping), strict=True):
        statistics = token_statistics(hidden, layout)
        pooled = statistics.mean
        if shares is not None:
            pooled = torch.cat(gather(pooled, shares.sequences))
        collapse = soft_collapse(statistics, own, tau, shares)
        isotropy = spectral_isotropy(pooled, own)
        for values, term in zip(terms.values(), (*collapse, *isotropy), strict=True):
            values.append(term)
    return {name: _mean(torch.cat(values)) for name, values in terms.items()}


def _widths_of(layers: int, widths: Sequence[int], mapping: Mapping) -> list[Sequence[int]]:
    """Return the widths that each layer is combined with."""
    if mapping == "grid":
        return [widths] * layers
    if len(widths) != layers:
        msg = f"mapping 'pairs' needs as many layers as widths, got {layers} and {len(widths)}"
        raise ValueError(msg)
    return [[width] for width in widths]


def _mean(values: Tensor) -> Tensor:
    """Return the mean, and 0 rather than NaN if there is nothing."""
    return values.sum() / max(len(values), 1)


class AlignmentLoss(nn.Module):
    """L_align = L_SCR + L_SIR, averaged over layers and widths (docs/method.md section 4).

    Args:
        widths: Nested widths, strictly increasing.
        tau: Threshold of the correlations, or ``auto``.
        lambda_corr: Weight of L_corr in L_SCR.
        lambda_var: Weight of L_var in L_SCR.
        mapping: ``grid`` combines every layer with every width, ``pairs`` the k-th with the k-th.
        across_workers: Take the statistics of the batches of all workers together, where there are
            several.
    """

    def __init__(  # noqa: PLR0913 - one argument per choice
        self,
        widths: Sequence[int],
        tau: Threshold = "auto",
        lambda_corr: float = 1.0,
        lambda_var: float = 0.1,
        mapping: Mapping = "grid",
        *,
        across_workers: bool = False,
    ) -> None:
        """Keep the settings; there is nothing to learn."""
        super().__init__()
        self.widths = tuple(widths)
        self.tau = tau
        self.lambda_corr = lambda_corr
        self.lambda_var = lambda_var
        self.mapping = mapping
        self.across_workers = across_workers
        self._warned = False

    def factor(self, name: str) -> float:
        """Return the weight of one component in L_align."""
        return {
            "soft_collapse_corr": self.lambda_corr,
            "soft_collapse_var": self.lambda_var,
            "isotropy_cv": 0.5,
            "isotropy_unif": 0.5,
        }[name]

    def forward(
        self,
        layers: Sequence[Hidden],
        masks: Hidden | TokenLayout,
        widths: Sequence[int] | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return L_align and its four unweighted components.

        Args:
            layers: Per chosen layer, hidden states (B, L, d) or one such tensor per chunk.
            masks: Attention mask (B, L), one per chunk, or the layout if it is known already.
            widths: Widths of this batch; None for all.

        Returns:
            L_align = lambda_corr * soft_collapse_corr + lambda_var * soft_collapse_var
            + (isotropy_cv + isotropy_unif) / 2, and the components by name.

        Raises:
            ValueError: If shapes or widths do not fit.
        """
        layout = masks if isinstance(masks, TokenLayout) else TokenLayout.from_masks(masks)
        count, device = len(layout.lengths), layout.lengths.device
        whole = shares(count, len(layout.sequence), device) if self.across_workers else None
        if whole is not None:
            count = sum(whole.sequences)
        self._warned = warn_small_batch(count, warned=self._warned)
        parts = alignment_components(
            layers,
            layout,
            widths or self.widths,
            tau=self.tau,
            mapping=self.mapping,
            shares=whole,
        )
        weighted = {name: self.factor(name) * part for name, part in parts.items()}
        collapse = weighted["soft_collapse_corr"] + weighted["soft_collapse_var"]
        return collapse + (weighted["isotropy_cv"] + weighted["isotropy_unif"]), parts
