"""Averaging the weights of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from domain_embeddings.core.encoders.rotation import find_rotation

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def interpolate(model: SentenceTransformer, reference: SentenceTransformer, weight: float) -> None:
    """Move the weights of a model back towards those of the model it was trained from.

    A rotation is not averaged: the basis is that of the trained model.

    Args:
        model: Changed in place: reference + weight * (model - reference), weight by weight.
        reference: What it was trained from; its modules come first in the model.
        weight: 1 leaves the model as it is, bit for bit; 0 gives the reference, in the basis of the
            model.

    Raises:
        ValueError: If the two do not have the same weights.

    Source:
        docs/method.md, section 5d.
    """
    if weight == 1.0:
        return
    basis = find_rotation(reference)
    for module, start in zip(model, reference, strict=False):
        if start is basis:
            continue
        begin = dict(start.named_parameters())
        if begin.keys() != {name for name, _ in module.named_parameters()}:
            msg = f"{type(module).__name__}: weights differ from those of the reference"
            raise ValueError(msg)
        with torch.no_grad():
            for name, end in module.named_parameters():
                end.copy_(torch.lerp(begin[name].to(end), end, weight))
