"""Our pair losses as the loss of a sentence-transformers trainer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class SentencePairsLoss(nn.Module):
    """Let ``SentenceTransformerTrainer`` train with a loss of (anchors, positives).

    Example: ``SentencePairsLoss(model, NestedInfoNCELoss([32, 128, 384]))``. The data set's
    columns are anchor, positive and any number of negatives. A loss sees no texts here, so repeated
    texts are not masked: use the batch sampler ``no_duplicates``.

    Args:
        model: Sentence encoder that maps a batch of features to a dict with
            ``sentence_embedding`` (B, d).
        loss: Module called with anchors (B, d) and positives (B + H, d).
    """

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        """Keep the encoder where the trainer looks for it."""
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Encode every column and return the loss of the batch.

        Args:
            sentence_features: Tokenised columns: anchors, positives, then negatives.
            labels: Ignored; the trainer passes it to every loss.

        Returns:
            Scalar loss.

        Raises:
            ValueError: If there are fewer than two columns.
        """
        anchors, *others = (self.model(part)["sentence_embedding"] for part in sentence_features)
        if not others:
            msg = "a pair loss needs at least the columns anchor and positive"
            raise ValueError(msg)
        return self.loss(anchors, torch.cat(others))
