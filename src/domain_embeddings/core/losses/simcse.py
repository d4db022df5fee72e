"""What SimCSE adds to InfoNCE: a head that is there in training only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.losses.nesting import full_precision, no_autocast


class ViewHead(nn.Module):
    """z = tanh(W sqrt(d) x + b), put on the two views of a text while training.

    The published head sits on pooled states. Embeddings here have norm 1, so sqrt(d) gives their
    entries the size that a pooled state has; without it tanh would be linear.

    Args:
        width: Embedding width d.
        seed: Of the initial W, normal with standard deviation 1 / sqrt(d); b starts at 0.

    Source:
        arXiv 2104.08821; docs/method.md section 5a.
    """

    def __init__(self, width: int, seed: int = 0) -> None:
        """Draw the weights from a generator of their own: the global one stays as it is."""
        super().__init__()
        self.scale = width**0.5
        self.linear = torch.nn.utils.skip_init(nn.Linear, width, width)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(width, width, generator=generator) / self.scale)
            self.linear.bias.zero_()

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return z of normalised embeddings, both (n, d), in full precision."""
        with no_autocast(embeddings):
            x = full_precision(embeddings) * self.scale
            return torch.tanh(self.linear(x.to(self.linear.weight.dtype)))


def require_dropout(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Refuse a model that gives the same embedding twice while it trains: there are no two views.

    Measured, because backbones name their dropout in different ways, and some that have it set it
    to 0. Random states and the mode of the model are as before.

    Args:
        model: The encoder, adapters included.
        inputs: Its input, on its device.

    Raises:
        ParameterError: Naming what to choose instead.
    """
    mode = model.training
    model.train()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            first, second = (model(dict(inputs))["sentence_embedding"] for _ in range(2))
    finally:
        model.train(mode)
    if torch.equal(first, second):
        msg = (
            "training.method: simcse tells two views of a text apart by dropout, and this model "
            "has none; allowed: another method, or training.lora with a dropout above 0"
        )
        raise ParameterError(msg)
