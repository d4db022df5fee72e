"""InfoNCE on every nested width at the cost of one, without punishing true pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from domain_embeddings.core.losses.nesting import (
    check_widths,
    full_precision,
    growing_cosines,
    no_autocast,
    width_weights,
)


def nested_info_nce(  # noqa: PLR0913 - one argument per symbol of the formula
    anchors: Tensor,
    positives: Tensor,
    widths: Sequence[int],
    weights: Sequence[float] | Tensor | None = None,
    *,
    temperature: float = 0.05,
    mask: Tensor | None = None,
    symmetric: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the weighted mean over widths of the contrastive loss between pairs.

    Args:
        anchors: Shape (B, d); normalised or not, the prefixes are.
        positives: Shape (B + H, d): row i belongs to anchor i, the last H rows are mined
            negatives (or positives of other machines).
        widths: K nested widths, strictly increasing, at most d.
        weights: K weights, scaled to sum 1; None for equal ones.
        temperature: Divides the cosines, above 0.
        mask: Boolean (B, B + H), True where a candidate is not a true negative and is left out
            (see false_negative_mask). The diagonal always stays in. A row without any other
            candidate has loss 0.
        symmetric: Also score positives against anchors, and average the two directions. The mined
            negatives are candidates of the first direction only.

    Returns:
        The loss, a scalar, and the loss of each width, shape (K,); float32, or float64 if that came
        in. Both carry a gradient.

    Raises:
        ValueError: If shapes, widths, weights or the temperature do not fit.

    Source: docs/method.md section 3.
    """
    _check_pairs(anchors, positives, mask, temperature)
    widths = check_widths(widths, anchors.shape[1])
    with no_autocast(anchors):
        a, p = full_precision(anchors), full_precision(positives)
        scores = growing_cosines(a, p, widths, temperature)
        if mask is not None:
            excluded = mask.clone()
            excluded.fill_diagonal_(fill_value=False)
            scores = scores.masked_fill(excluded, float("-inf"))
        per_width = _diagonal_cross_entropy(scores)
        if symmetric:
            across = scores[:, :, : len(a)].transpose(1, 2)
            per_width = (per_width + _diagonal_cross_entropy(across)) / 2
        return per_width @ width_weights(weights, per_width), per_width


def _diagonal_cross_entropy(scores: Tensor) -> Tensor:
    """Return the mean cross-entropy of (K, B, C) scores against their diagonals, shape (K,)."""
    return -scores.log_softmax(dim=2).diagonal(dim1=1, dim2=2).mean(dim=1)


def _check_pairs(
    anchors: Tensor, positives: Tensor, mask: Tensor | None, temperature: float
) -> None:
    """Refuse shapes that would broadcast into a wrong loss."""
    rows, candidates = len(anchors), len(positives)
    if rows < 1 or candidates < rows or anchors.shape[1] != positives.shape[1]:
        msg = (
            "anchors (B, d) need a positive each, positives (B + H, d), got "
            f"{tuple(anchors.shape)} and {tuple(positives.shape)}"
        )
        raise ValueError(msg)
    if mask is not None and (mask.shape != (rows, candidates) or mask.dtype != torch.bool):
        msg = f"mask must be boolean {(rows, candidates)}, got {mask.dtype} {tuple(mask.shape)}"
        raise ValueError(msg)
    if temperature <= 0:
        msg = f"temperature must be above 0, got {temperature}"
        raise ValueError(msg)


def false_negative_mask(  # noqa: PLR0913 - identities of anchors, positives and negatives
    anchor_ids: Tensor,
    positive_ids: Tensor,
    labels: Tensor | None = None,
    task_ids: Tensor | None = None,
    negative_ids: Tensor | None = None,
    *,
    negative_labels: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return which candidates of each anchor are not true negatives.

    Candidate j is left out for anchor i when its text is anchor i's own text, is a positive of the
    same anchor text anywhere in the batch (so a repeated positive and a repeated anchor both
    count), or when pairs i and j have the same label in the same task. The mined negative of
    another pair is left out when it has the label of anchor i.

    Args:
        anchor_ids: Text identities of the anchors, int64 (B,): equal texts have equal ids.
        positive_ids: Text identities of their positives, int64 (B,).
        labels: Label identities, int64 (B,), negative where a pair has none.
        task_ids: Task of each pair, int64 (B,); needed with labels, which mean nothing across
            tasks.
        negative_ids: Text identities of the mined negatives, int64 (H,).
        negative_labels: Label identities of the mined negatives, int64 (H,), negative where one has
            none; they must not be shared between tasks.

    Returns:
        Boolean mask (B, B + H), True where left out, False on the diagonal; and the number of
        candidates left out, an int64 scalar.

    Raises:
        ValueError: If labels come without tasks.

    Source: docs/method.md section 3.
    """
    candidates = positive_ids if negative_ids is None else torch.cat([positive_ids, negative_ids])
    same_anchor = anchor_ids[:, None] == anchor_ids[None, :]
    same_text = positive_ids[:, None] == candidates[None, :]
    # A product of 0/1 matrices counts by how many pairs each candidate is known to be a positive.
    mask = (same_anchor.float() @ same_text.float()) > 0
    mask |= anchor_ids[:, None] == candidates[None, :]
    if labels is not None:
        if task_ids is None:
            msg = "labels need task_ids: a label means nothing outside its task"
            raise ValueError(msg)
        same_label = (labels[:, None] == labels[None, :]) & (labels >= 0)[:, None]
        same_label &= task_ids[:, None] == task_ids[None, :]
        mask[:, : len(anchor_ids)] |= same_label
    if labels is not None and negative_labels is not None:
        same = labels[:, None] == negative_labels[None, :]
        mask[:, len(anchor_ids) :] |= same & (labels >= 0)[:, None]
    mask.fill_diagonal_(fill_value=False)
    return mask, mask.sum()


class NestedInfoNCELoss(nn.Module):
    """InfoNCE averaged over nested widths (docs/method.md section 3).

    Args:
        widths: Nested widths, strictly increasing; ``[d]`` gives the plain loss.
        weights: One weight per width, scaled to sum 1; None for equal ones.
        temperature: Divides the cosines.
        symmetric: Also score positives against anchors.
    """

    def __init__(
        self,
        widths: Sequence[int],
        weights: Sequence[float] | None = None,
        *,
        temperature: float = 0.05,
        symmetric: bool = False,
    ) -> None:
        """Keep the settings; there is nothing to learn."""
        super().__init__()
        self.widths = tuple(widths)
        self.weights = None if weights is None else tuple(weights)
        self.temperature = temperature
        self.symmetric = symmetric

    def forward(self, anchors: Tensor, positives: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of ``nested_info_nce`` as a scalar."""
        loss, _ = nested_info_nce(
            anchors,
            positives,
            self.widths,
            self.weights,
            temperature=self.temperature,
            mask=mask,
            symmetric=self.symmetric,
        )
        return loss
