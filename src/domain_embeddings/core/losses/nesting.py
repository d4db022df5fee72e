"""What the nested losses share: widths, their weights, full precision and the growing Gram."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def check_widths(widths: Sequence[int], d: int) -> tuple[int, ...]:
    """Return the nested widths as a tuple after checking them against the embedding width.

    Args:
        widths: Nested widths M, strictly increasing.
        d: Embedding width.

    Returns:
        The widths.

    Raises:
        ValueError: If there is none, one is below 1 or above d, or they do not increase.
    """
    widths = tuple(int(width) for width in widths)
    increasing = all(low < high for low, high in pairwise(widths))
    if not widths or not increasing or widths[0] < 1 or widths[-1] > d:
        msg = f"widths must be strictly increasing and between 1 and d = {d}, got {list(widths)}"
        raise ValueError(msg)
    return widths


def width_weights(weights: Sequence[float] | Tensor | None, like: Tensor) -> Tensor:
    """Return one weight per width, scaled to sum 1.

    Args:
        weights: K non-negative weights, or None for equal ones; a tensor may carry a gradient.
        like: Tensor of shape (K,) whose dtype and device the weights take.

    Returns:
        Weights of shape (K,) that sum to 1.

    Raises:
        ValueError: If their number is not K, one is negative or their sum is zero.
    """
    if weights is None:
        return torch.full_like(like, 1.0 / len(like)).detach()
    if len(weights) != len(like):
        msg = f"got {len(weights)} weights for {len(like)} widths"
        raise ValueError(msg)
    if isinstance(weights, Tensor):
        # A tensor is not inspected: reading it would make the GPU wait at every step.
        scaled = weights.to(like)
    else:
        if min(weights) < 0 or sum(weights) <= 0:
            msg = f"weights must be non-negative with a positive sum, got {list(weights)}"
            raise ValueError(msg)
        scaled = like.new_tensor(weights)
    return scaled / scaled.sum()


def full_precision(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or untouched if it is float64."""
    return x if x.dtype == torch.float64 else x.float()


def no_autocast(x: Tensor) -> torch.autocast:
    """Return a context that computes in the dtype of its inputs on the device of ``x``."""
    return torch.autocast(device_type=x.device.type, enabled=False)


def prefix_blocks(x: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """Split (n, d) into the column blocks that each width adds to the one before it."""
    sizes = [high - low for low, high in pairwise((0, *widths))]
    # One split, not K slices: its backward pass is one concatenation.
    return x[:, : widths[-1]].split(sizes, dim=1)


def inverse_norms(blocks: Sequence[Tensor]) -> Tensor:
    """Return 1 / |prefix| of shape (K, n), and 1 where a prefix is zero."""
    squares = torch.stack([block.square().sum(dim=1) for block in blocks]).cumsum(dim=0)
    return torch.where(squares > 0, squares, torch.ones_like(squares)).rsqrt()


def growing_cosines(
    a: Tensor, p: Tensor, widths: Sequence[int], temperature: float = 1.0
) -> Tensor:
    """Return the cosines between all prefixes of ``a`` and ``p`` at every width.

    The inner products of one width are those of the previous width plus one block, and so are the
    squared norms: all widths together cost one product at full width.

    Args:
        a: Vectors of shape (B, d), float32 or float64, not necessarily normalised.
        p: Vectors of shape (C, d).
        widths: K nested widths, checked.
        temperature: Divides the cosines.

    Returns:
        ``prefix(a, m) @ prefix(p, m).T / temperature`` for each width, shape (K, B, C).

    Source: docs/method.md section 3.
    """
    rows, columns = prefix_blocks(a, widths), prefix_blocks(p, widths)
    gram = rows[0] @ columns[0].T
    grams = [gram]
    for row, column in zip(rows[1:], columns[1:], strict=True):
        gram = torch.addmm(gram, row, column.T)
        grams.append(gram)
    left = inverse_norms(rows) / temperature
    return torch.stack(grams) * left[:, :, None] * inverse_norms(columns)[:, None, :]
