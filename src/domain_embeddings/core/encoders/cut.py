"""A model that gives the vectors of one width, with nothing left for its user to remember."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def cut_model(model: SentenceTransformer, width: int) -> SentenceTransformer:
    """Return a model of the same layers whose vectors are `prefix` (x, width) of the given one's.

    sentence-transformers truncates behind the last module and so leaves vectors that no longer have
    length 1. Here the cut is a linear layer before the final normalisation: the rows of the
    rotation that are kept, where the model ends in one, and rows of the identity elsewhere. Only
    modules of sentence-transformers are used, so the saved folder needs no code of ours.

    Args:
        model: Shares its layers with the result, apart from the last ones.
        width: 1 <= width <= d.

    Returns:
        The model, in evaluation mode, with the prompts and the maximum length of the given one.

    Raises:
        ValueError: If the width is not between 1 and d.
    """
    from sentence_transformers import SentenceTransformer

    full = int(model.get_embedding_dimension() or 0)
    if not 1 <= width <= full:
        msg = f"cannot cut at {width}: the width must be between 1 and {full}"
        raise ValueError(msg)
    modules: list[Any] = list(model)
    if isinstance(modules[-1], Normalize):
        modules.pop()
    if width < full:
        kept = modules.pop() if _is_linear(modules[-1]) else None
        modules.append(_rows(kept, full, width).to(model.device))
    shipped: Any = SentenceTransformer(
        modules=[*modules, Normalize()],
        device=str(model.device),
        prompts={name: text or "" for name, text in model.prompts.items()},
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name="cosine",
    )
    return shipped.eval()


def _is_linear(module: Any) -> bool:
    """Say whether a module is a plain linear map of the sentence embedding."""
    return (
        isinstance(module, Dense)
        and isinstance(module.activation_function, nn.Identity)
        and not module.use_residual
        and module.module_input_name == module.module_output_name == "sentence_embedding"
    )


def _rows(kept: Dense | None, full: int, width: int) -> Dense:
    """Return the first rows of a linear module, or of the identity."""
    weight = torch.eye(full) if kept is None else kept.linear.weight.detach().cpu()
    bias = None if kept is None or not kept.bias else kept.linear.bias.detach().cpu()
    return Dense(
        weight.shape[1],
        width,
        bias=bias is not None,
        activation_function=nn.Identity(),
        init_weight=weight[:width].clone(),
        init_bias=None if bias is None else bias[:width].clone(),
    ).requires_grad_(False)
