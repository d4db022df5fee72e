"""Low-rank adapters: train a few parameters, then merge them into a plain model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from domain_embeddings.core.encoders.loading import backbone
from domain_embeddings.core.errors import ParameterError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.parameters import LoraParameters


def add_adapters(model: SentenceTransformer, parameters: LoraParameters, seed: int) -> None:
    """Put a low-rank adapter beside linear layers, and let nothing else of the model train.

    A layer then computes W x + (alpha / rank) B A x, with B = 0 at the start: the model is the same
    until the first step.

    Args:
        model: Changed in place.
        parameters: Rank, alpha, dropout and which layers.
        seed: Of A; the global generator of torch is left as it was.

    Raises:
        ParameterError: If a name matches no linear layer.

    Source:
        docs/method.md, section 5.
    """
    from peft import LoraConfig, inject_adapter_in_model

    encoder = backbone(model)
    config = LoraConfig(
        r=parameters.rank,
        lora_alpha=parameters.alpha,
        lora_dropout=parameters.dropout,
        target_modules=target_names(encoder, parameters.modules),
    )
    model.requires_grad_(False)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # Not the model's own `add_adapter`, which asks for a newer peft than linear layers need.
        inject_adapter_in_model(config, encoder)


def merge_adapters(model: SentenceTransformer) -> None:
    """Add every adapter to the weights of its layer, and leave a plain model that trains whole.

    Args:
        model: Changed in place; does nothing where there is no adapter.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    encoder = backbone(model)
    layers = [(n, m) for n, m in encoder.named_modules() if isinstance(m, BaseTunerLayer)]
    if not layers:
        return
    for name, layer in layers:
        layer.merge(safe_merge=True)
        encoder.set_submodule(name, layer.get_base_layer())
    del encoder.peft_config
    encoder.requires_grad_(True)


def target_names(encoder: nn.Module, modules: str | Sequence[str]) -> list[str]:
    """Return the full names of the linear layers that are meant, inside transformer layers only.

    A pooler or head outside of them is not what embeddings are made of.

    Args:
        encoder: The transformers model; its weights are not looked at.
        modules: ``all``, or ends of names.

    Raises:
        ParameterError: If the model has no linear layer of such a name.
    """
    linear = [
        name
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Linear) and any(part.isdigit() for part in name.split("."))
    ]
    if isinstance(modules, str):
        return linear
    unknown = [end for end in modules if not any(_ends_with(name, end) for name in linear)]
    if unknown:
        allowed = sorted({_after_number(name) for name in linear})
        msg = (
            f"training.lora.modules: {unknown} not in the model; allowed: all, or some of {allowed}"
        )
        raise ParameterError(msg)
    return [name for name in linear if any(_ends_with(name, end) for end in modules)]


def _ends_with(name: str, end: str) -> bool:
    """Say whether whole components at the end of a name are the given ones."""
    return f".{name}".endswith(f".{end}")


def _after_number(name: str) -> str:
    """Return what follows the number of the layer."""
    parts = name.split(".")
    last = max(i for i, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[last + 1 :])


def count_parameters(model: Any) -> tuple[int, int]:
    """Return how many parameters train, and how many there are.

    Args:
        model: A module, the loss included where it has parameters of its own.
    """
    sizes = [(p.requires_grad, p.numel()) for p in model.parameters()]
    return sum(size for trains, size in sizes if trains), sum(size for _, size in sizes)
