"""The one place where embeddings are truncated: cut first, then normalise."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

if TYPE_CHECKING:
    import torch

Vectors = TypeVar("Vectors", np.ndarray, "torch.Tensor")


def prefix(x: Vectors, m: int) -> Vectors:
    """Keep the first ``m`` coordinates of every vector and L2-normalise what is left.

    Args:
        x: Vectors of shape (..., d), NumPy or torch, any floating dtype.
        m: Width to keep, 1 <= m <= d.

    Returns:
        Vectors of shape (..., m) and norm 1, in float32 (float64 stays float64), of the kind that
        came in. A vector whose first ``m`` coordinates are zero stays zero, with zero slope there.

    Raises:
        ValueError: If ``m`` is not between 1 and d.

    Source: docs/method.md, symbol table ("one rule for every truncation").
    """
    width = x.shape[-1]
    if not 1 <= m <= width:
        msg = f"cannot keep m = {m} of d = {width} coordinates: m must be between 1 and d"
        raise ValueError(msg)
    if isinstance(x, np.ndarray):
        return cast("Vectors", _prefix_numpy(x[..., :m]))
    return cast("Vectors", _prefix_torch(x[..., :m]))


def _prefix_numpy(x: np.ndarray) -> np.ndarray:
    """Normalise the last axis in float32, or in float64 if that is what came in."""
    x = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    squares = np.sum(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(np.where(squares > 0, squares, 1))


def _prefix_torch(x: torch.Tensor) -> torch.Tensor:
    """Normalise the last axis in float32, or in float64 if that is what came in."""
    import torch

    x = x if x.dtype == torch.float64 else x.float()
    squares = x.square().sum(dim=-1, keepdim=True)
    # Replaced before the root, not after it: the slope of sqrt at zero is infinite.
    return x * torch.where(squares > 0, squares, torch.ones_like(squares)).rsqrt()
