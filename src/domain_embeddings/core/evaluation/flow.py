"""A small volume-preserving flow: the non-linear rival among the post-hoc transforms."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from domain_embeddings.core.evaluation.transforms import Transform, pca_centred

LAYERS = 5
_HIDDEN = 128
_BATCH = 256
_RATE = 1e-3
_DECAY = 1e-2
_EPOCHS = 100
_PATIENCE = 5
_HELD_OUT = 0.1


class Couplings(nn.Module):
    """Additive couplings over alternating halves of the coordinates (NICE).

    Each layer adds to one half a function of the other: y_a = x_a, y_b = x_b + m(x_a). Its Jacobian
    is triangular with ones on the diagonal, so volumes stay as they are, and x_b = y_b - m(y_a)
    inverts it. Every m starts at zero: the flow begins as the identity.

    Args:
        width: Number of coordinates d >= 2.
        generator: Source of the first weights.

    Source: arXiv 1410.8516, section 3.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        """Draw the hidden layers; the outer ones are zero."""
        super().__init__()
        # Even and odd places: after PCA both halves hold large and small directions.
        even, odd = torch.arange(0, width, 2), torch.arange(1, width, 2)
        self.halves = [(even, odd), (odd, even)]
        self.nets = nn.ModuleList()
        for layer in range(LAYERS):
            kept, changed = (len(half) for half in self.halves[layer % 2])
            # Without its own first weights, which would come from the global generator.
            inner = nn.utils.skip_init(nn.Linear, kept, _HIDDEN)
            outer = nn.utils.skip_init(nn.Linear, _HIDDEN, changed)
            nn.init.normal_(inner.weight, std=1 / math.sqrt(kept), generator=generator)
            for zero in (inner.bias, outer.weight, outer.bias):
                nn.init.zeros_(zero)
            self.nets.append(nn.Sequential(inner, nn.ReLU(), outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x (n, d) to z (n, d)."""
        return self._pass(x, range(LAYERS), 1.0)

    def inverse(self, z: torch.Tensor) -> torch.Tensor:
        """Map z (n, d) back to x (n, d)."""
        return self._pass(z, range(LAYERS)[::-1], -1.0)

    def _pass(self, x: torch.Tensor, layers: range, sign: float) -> torch.Tensor:
        """Add, or take away, what every layer adds."""
        for layer in layers:
            kept, changed = self.halves[layer % 2]
            x = x.index_add(1, changed, self.nets[layer](x[:, kept]), alpha=sign)
        return x


@dataclass(frozen=True)
class Flow(Transform):
    """PCA around the mean of the training text, then couplings.

    Args:
        couplings: The fitted layers.
        scale: Root mean square of a coordinate of the training text, which the layers work at.
    """

    couplings: Couplings | None = None
    scale: float = 1.0

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """Transform rows, shape (n, d), in float32; the result is not normalised."""
        rotated = super().apply(vectors)
        if self.couplings is None:
            return rotated
        with torch.no_grad():
            x = torch.from_numpy(np.ascontiguousarray(rotated, dtype=np.float32))
            return self.scale * self.couplings(x / self.scale).numpy()


def flow(vectors: np.ndarray, seed: int = 0) -> Flow:
    """Fit the flow by maximum likelihood under an isotropic normal distribution.

    With a map f that keeps volumes, log p(x) = log N(f(x); 0, s^2 I). At the best s, that is
    largest where

        L = (d / 2) log mean |f(x)|^2

    is smallest: f makes the cloud of vectors round. (For linear f the optimum is whitening, up to
    scale.) A tenth of the texts is held out; the weights of its best L are kept, so a flow that
    generalises no better than PCA is PCA.

    Args:
        vectors: Embeddings of training text, shape (n, d), n >= 2.
        seed: Seed of first weights, batches and the held-out part.

    Returns:
        The transform.

    Source: docs/method.md, section 5.
    """
    rotation = pca_centred(vectors)
    x = torch.from_numpy(np.asarray(rotation.apply(vectors), dtype=np.float32))
    scale = float(x.square().mean().sqrt()) or 1.0
    generator = torch.Generator().manual_seed(seed)
    couplings = Couplings(x.shape[1], generator)
    order = torch.randperm(len(x), generator=generator)
    held = max(1, round(_HELD_OUT * len(x)))
    _fit(couplings, x[order[held:]] / scale, x[order[:held]] / scale, generator)
    return Flow("flow", rotation.matrix, rotation.offset, couplings, scale)


def _fit(
    couplings: Couplings, rows: torch.Tensor, held_out: torch.Tensor, generator: torch.Generator
) -> None:
    """Train until the held-out likelihood has not risen for a few epochs; keep the best weights."""
    optimiser = torch.optim.AdamW(couplings.parameters(), lr=_RATE, weight_decay=_DECAY)
    best, kept, waited = _loss(couplings, held_out), copy.deepcopy(couplings.state_dict()), 0
    for _ in range(_EPOCHS):
        for batch in torch.randperm(len(rows), generator=generator).split(_BATCH):
            optimiser.zero_grad()
            (0.5 * rows.shape[1] * couplings(rows[batch]).square().mean().log()).backward()
            optimiser.step()
        loss = _loss(couplings, held_out)
        if loss < best:
            best, kept, waited = loss, copy.deepcopy(couplings.state_dict()), 0
        elif waited + 1 >= _PATIENCE:
            break
        else:
            waited += 1
    couplings.load_state_dict(kept)
    couplings.requires_grad_(False)


def _loss(couplings: Couplings, rows: torch.Tensor) -> float:
    """Return the mean square of the mapped coordinates, which orders flows as L does."""
    with torch.no_grad():
        return float(couplings(rows).square().mean())
