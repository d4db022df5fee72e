"""Token statistics of a batch of sequences, whatever chunks or padding they came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from domain_embeddings.core.losses.nesting import full_precision, no_autocast

Hidden = Tensor | Sequence[Tensor]


@dataclass(frozen=True)
class TokenLayout:
    """Where the valid tokens of a batch are; computed once per step and shared by all layers.

    Args:
        rows: Per chunk, the flat positions of its valid tokens, or None if all of them are.
        sequence: Sequence of each valid token, int64 (T,), from 0 to B - 1.
        lengths: Valid tokens N_i of each sequence, int64 (B,).
    """

    rows: tuple[Tensor | None, ...]
    sequence: Tensor
    lengths: Tensor

    @classmethod
    def from_masks(cls, masks: Hidden) -> TokenLayout:
        """Describe padded chunks.

        Args:
            masks: One attention mask (b, L), non-zero on valid tokens, or one per chunk; the chunks
                may be padded to different lengths and hold B sequences together.

        Returns:
            The layout of all B sequences in chunk order.

        Raises:
            ValueError: If there is no valid token at all.
        """
        rows, sequences, lengths, first = [], [], [], 0
        for mask in [masks] if isinstance(masks, Tensor) else masks:
            valid = mask.bool()
            row = valid.flatten().nonzero().squeeze(1)
            sequences.append(row.div(valid.shape[1], rounding_mode="floor") + first)
            lengths.append(valid.sum(dim=1))
            rows.append(None if len(row) == valid.numel() else row)
            first += len(valid)
        return cls._checked(tuple(rows), torch.cat(sequences), torch.cat(lengths))

    @classmethod
    def from_packed(cls, sequence: Tensor, count: int, chunks: int = 1) -> TokenLayout:
        """Describe unpadded tokens.

        Args:
            sequence: Sequence of each token, int64 (T,), in any order.
            count: Number of sequences B.
            chunks: Number of tensors that the tokens come in.

        Returns:
            The layout of all B sequences.

        Raises:
            ValueError: If there is no token at all.
        """
        return cls._checked((None,) * chunks, sequence, torch.bincount(sequence, minlength=count))

    @classmethod
    def _checked(
        cls, rows: tuple[Tensor | None, ...], sequence: Tensor, lengths: Tensor
    ) -> TokenLayout:
        """Refuse a batch without tokens, for which no statistic is defined."""
        if len(sequence) == 0:
            msg = f"no valid token in {len(lengths)} sequences"
            raise ValueError(msg)
        return cls(rows, sequence, lengths)

    def gather(self, hidden: Hidden) -> Tensor:
        """Collect the valid tokens of one layer.

        Args:
            hidden: Hidden states in the chunks of this layout: (b, L, d) each; (1, T, d) or (T, d)
                where packed.

        Returns:
            Tokens of shape (T, d), in the dtype of the hidden states.

        Raises:
            ValueError: If the chunks are not those of this layout.
        """
        chunks = [hidden] if isinstance(hidden, Tensor) else list(hidden)
        if len(chunks) != len(self.rows):
            msg = f"got {len(chunks)} chunks of hidden states for {len(self.rows)} masks"
            raise ValueError(msg)
        flat = [chunk.reshape(-1, chunk.shape[-1]) for chunk in chunks]
        parts = [
            chunk if row is None else chunk.index_select(0, row)
            for chunk, row in zip(flat, self.rows, strict=True)
        ]
        tokens = parts[0] if len(parts) == 1 else torch.cat(parts)
        if len(tokens) != len(self.sequence):
            msg = f"got {len(tokens)} tokens for a layout of {len(self.sequence)}"
            raise ValueError(msg)
        return tokens


class TokenStatistics(NamedTuple):
    """Statistics of one layer, float32 (float64 if the hidden states are).

    Args:
        scaled: Standardised tokens divided by sqrt(N_i), (T, d): scaled^T scaled / B is R.
        mean: Mean-pooled sequences Z, (B, d).
        std: Standard deviation over the tokens of each sequence, (B, d), not below eps.
    """

    scaled: Tensor
    mean: Tensor
    std: Tensor


def token_statistics(hidden: Hidden, layout: TokenLayout, eps: float = 1e-5) -> TokenStatistics:
    """Standardise every dimension within every sequence over its valid tokens.

    Chunking, padding and the order of tokens change nothing. A sequence of one token and a
    dimension that does not vary have standardised values 0 and standard deviation eps, and no
    slope there; a sequence without tokens has mean 0.

    Args:
        hidden: Hidden states H in the chunks of the layout.
        layout: Where the valid tokens are.
        eps: Lower bound of a standard deviation, in the unit of H, above 0.

    Returns:
        Standardised tokens, means and standard deviations.

    Raises:
        ValueError: If hidden states and layout do not belong together.

    Source: docs/method.md section 4.
    """
    tokens = layout.gather(hidden)
    with no_autocast(tokens):
        tokens = full_precision(tokens)
        lengths = layout.lengths.clamp_min(1).to(tokens.dtype)[:, None]
        return TokenStatistics(
            *cast("Any", _Standardise.apply)(tokens, layout.sequence, lengths, eps)
        )


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean-pool padded hidden states over their valid tokens.

    Args:
        hidden: Hidden states of shape (B, L, d).
        mask: Attention mask of shape (B, L), non-zero on valid tokens.

    Returns:
        Means of shape (B, d), float32 (float64 stays); 0 for a sequence without tokens.
    """
    with no_autocast(hidden):
        tokens = full_precision(hidden)
        valid = mask.bool().to(tokens.dtype)
        total = torch.bmm(valid[:, None, :], tokens).squeeze(1)
        return total / valid.sum(dim=1, keepdim=True).clamp_min(1)


def _sum_by(values: Tensor, sequence: Tensor, count: int) -> Tensor:
    """Add up the rows of (T, d) by sequence into (B, d)."""
    return values.new_zeros(count, values.shape[1]).index_add_(0, sequence, values)


def _per_unit(std: Tensor, varies: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 / (std sqrt(N_i)), (B, d), and 0 where a dimension does not vary.

    Rotated states have such a dimension, because a layer norm is constant along one direction. What
    they hold there is rounding, which 1 / eps would blow up to a slope that is seen.
    """
    return (std * lengths.sqrt()).reciprocal_().masked_fill_(~varies, 0.0)


class _Standardise(torch.autograd.Function):
    """Standardisation with its slope written out.

    Autograd would keep five (T, d) tensors per layer and walk through them twice as often.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, sequence: Tensor, lengths: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled tokens (T, d), means (B, d) and standard deviations (B, d)."""
        count = len(lengths)
        mean = _sum_by(tokens, sequence, count).div_(lengths)
        scaled = tokens - mean.index_select(0, sequence)
        variance = _sum_by(scaled.square(), sequence, count).div_(lengths)
        varies = variance > eps * eps
        std = variance.sqrt().clamp_min_(eps)
        scaled *= _per_unit(std, varies, lengths).index_select(0, sequence)
        ctx.save_for_backward(scaled, std, varies, sequence, lengths)
        return scaled, mean, std

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, d_scaled: Tensor, d_mean: Tensor, d_std: Tensor
    ) -> tuple[Tensor, None, None, None]:
        """Return the slope of the tokens (T, d)."""
        scaled, std, varies, sequence, lengths = ctx.saved_tensors
        count, root = len(lengths), lengths.sqrt()
        per_unit = _per_unit(std, varies, lengths)
        along = _sum_by(d_scaled * scaled, sequence, count)
        # What every token of a sequence gets, what it gets along its own standardised value, and
        # what it gets along the slope of that value.
        shared = (d_mean - _sum_by(d_scaled, sequence, count) * per_unit) / lengths
        inward = torch.where(varies, (d_std - along / std) / root, torch.zeros_like(std))
        d_tokens = d_scaled * per_unit.index_select(0, sequence)
        d_tokens.addcmul_(scaled, inward.index_select(0, sequence))
        return d_tokens.add_(shared.index_select(0, sequence)), None, None, None
