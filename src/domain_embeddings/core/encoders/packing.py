"""A batch of texts as one row of tokens: no padding, and every weight is used once a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from domain_embeddings.core.encoders.backbones import PROBE, outputs_agree, padding_position
from domain_embeddings.core.encoders.batching import tokenise
from domain_embeddings.core.encoders.loading import backbone

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

NAME = "packed"
GROUPS = "packed_groups"
# What sentence-transformers' pooling and flash attention know a packed row by.
BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
# Longer than the window of local layers, unless the model takes no such text.
_LONG = "word " * 200


def pack_rows(model: SentenceTransformer, rows: Sequence[dict[str, list[int]]]) -> dict[str, Any]:
    """Put tokenised texts behind each other, in the form of sentence-transformers' own packing.

    Args:
        model: Its backbone says from which number positions are counted.
        rows: Tokenised rows, at least one; rows of equal length are to stand together.

    Returns:
        The tokenizer's fields and ``position_ids``, each (1, T) for T tokens in all, the bounds of
        the texts, and as ``packed_groups`` how many texts of which length follow each other.
    """
    lengths = [len(row["input_ids"]) for row in rows]
    counts = torch.tensor(lengths)
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
    padding = padding_position(backbone(model))
    first = 0 if padding is None else padding + 1
    packed: dict[str, Any] = {
        name: torch.tensor([token for row in rows for token in row[name]])[None]
        for name in rows[0]
        if name != "attention_mask"
    }
    packed["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None] + first
    packed |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    packed |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    packed["seq_idx"] = torch.repeat_interleave(torch.arange(len(rows)), counts)[None]
    packed[GROUPS] = tuple((len(list(same)), length) for length, same in groupby(lengths))
    return packed


def packed_attention(  # noqa: PLR0913, PLR0917 - the signature of transformers' interface
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each text of a packed row; texts of one length are computed together.

    Args:
        module: The attention layer.
        query: Shape (1, heads, T, d_head).
        key: Shape (1, key heads, T, d_head).
        value: Likewise.
        attention_mask: None; of a padded batch its mask.
        dropout: Probability of dropping an attention weight.
        scaling: Factor of the products.
        is_causal: Whether a token sees only itself and what is before it.
        **kwargs: ``packed_groups`` of `pack_rows`, and ``sliding_window`` of local layers. Without
            groups the batch is a padded one, and attention that of `sdpa`.

    Returns:
        Shape (1, T, heads, d_head), and no weights.
    """
    groups = kwargs.get(GROUPS)
    if groups is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs
        )
    repeats = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, repeats), repeat_kv(value, repeats)
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    # Split once: the gradient of every slice for itself would be as large as the whole.
    sizes = [count * length for count, length in groups]
    split = zip(*(states[0].split(sizes, dim=1) for states in (query, key, value)), strict=True)
    parts = []
    for (count, length), states in zip(groups, split, strict=True):
        q, k, v = (own.unflatten(1, (count, length)).transpose(0, 1) for own in states)
        window = _window(length, kwargs.get("sliding_window"), causal, query.device)
        attended = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=window,
            dropout_p=dropout,
            scale=scaling,
            is_causal=causal and window is None and length > 1,
        )
        parts.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[None], None


def _window(length: int, window: int | None, causal: bool, device: torch.device) -> Tensor | None:
    """Return which tokens of a text a token of a local layer sees, (length, length), or None.

    As flash attention counts: the window holds the token itself and window - 1 on each side.
    """
    if window is None or length <= window:
        return None
    place = torch.arange(length, device=device)
    before = place[:, None] - place[None, :]
    if causal:
        return (before >= 0) & (before < window)
    return before.abs() < window


def _packed_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """Make no mask for a packed row; it would hold every pair of tokens of a batch."""
    return None if kwargs.get("attention_mask") is None else sdpa_mask(*args, **kwargs)


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, _packed_mask)


@contextmanager
def packing(model: SentenceTransformer, *, on: bool = True) -> Iterator[None]:
    """Let a model take packed rows, beside padded batches, until the end of the block.

    Args:
        model: Changed in its attention, and put back as it was.
        on: Whether to do anything at all.
    """
    if not on:
        yield
        return
    encoder = backbone(model)
    module: Any = model[0]
    before, known = encoder.config._attn_implementation, module.model_forward_params
    encoder.set_attn_implementation(NAME)
    if known is not None:
        module.model_forward_params = {*known, *BOUNDS, GROUPS}
    try:
        yield
    finally:
        encoder.set_attn_implementation(before)
        module.model_forward_params = known


def can_pack(model: SentenceTransformer) -> bool:
    """Say whether packed rows give a model's own outputs, measured on texts of several lengths.

    A backbone may have attention of its own, ignore position numbers, or look at neighbours in
    other ways; nothing but the result tells.
    """
    rows = sorted(tokenise(model, (*PROBE, _LONG)), key=lambda row: len(row["input_ids"]))

    def together(_padded: dict[str, Tensor]) -> Tensor:
        packed = {
            name: value.to(model.device) if isinstance(value, Tensor) else value
            for name, value in pack_rows(model, rows).items()
        }
        with packing(model):
            return model[0](packed)["token_embeddings"][0]

    return outputs_agree(model, rows, together)
