"""Batches of any size in the memory of a few rows, loss and gradient unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")


def cached(encode: Callable[..., Result], *arguments: Any) -> Result:
    """Encode a chunk now without its activations, and again when its gradient is there.

    The loss of a batch is computed from what all chunks return. Backpropagation then reaches one
    chunk after the other; each is encoded a second time with the random numbers of the first time,
    so dropout hits the same elements, and lets go of its activations before the next one.

    The gradient passes through one graph, not through one graph per chunk: parameters get theirs
    once, whatever loss it comes from, hidden states included.

    Args:
        encode: Returns everything that the loss needs of a chunk, and nothing more: that is kept.
        *arguments: Its arguments; it must not change them.

    Returns:
        What ``encode`` returns.

    Source:
        docs/method.md, section 5; Gao et al., arXiv 2101.06983.
    """
    return checkpoint(encode, *arguments, use_reentrant=False, preserve_rng_state=True)


def at_most(parts: list[np.ndarray], rows: int | None) -> list[np.ndarray]:
    """Split what is longer than a number of rows into parts of nearly equal size.

    Args:
        parts: Row indices of each chunk.
        rows: Most rows of a chunk; None leaves the chunks as they are.

    Returns:
        Row indices of each chunk, in the same order.
    """
    if rows is None:
        return parts
    return [piece for part in parts for piece in np.array_split(part, -(-len(part) // rows))]
