"""The adapter through which a sentence-transformers trainer calls a pair loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from domain_embeddings.core.losses import NestedInfoNCELoss, SentencePairsLoss, nested_info_nce


class Encoder(nn.Module):
    """Embeds features by one linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4, bias=False)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.linear(features["x"])}


def columns(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(5, 3, generator=generator)} for _ in range(count)]


def test_columns_become_anchors_positives_and_negatives() -> None:
    model, features = Encoder(), columns(4)
    loss = SentencePairsLoss(model, NestedInfoNCELoss([2, 4]))(features, torch.zeros(5))
    a, *others = (model(part)["sentence_embedding"] for part in features)
    expected, _ = nested_info_nce(a, torch.cat(others), [2, 4])
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert model.linear.weight.grad is not None
    assert model.linear.weight.grad.any()


def test_one_column_is_refused() -> None:
    with pytest.raises(ValueError, match="anchor and positive"):
        SentencePairsLoss(Encoder(), NestedInfoNCELoss([2, 4]))(columns(1))
