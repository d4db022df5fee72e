"""Prefix rotation: an orthogonal change of basis that puts what matters in a domain first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

from domain_embeddings.core.encoders.contrastive_axes import NOISE, contrastive_axes
from domain_embeddings.core.encoders.pair_vectors import PairVectors
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.axes import principal_axes, shared_axes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Axes = Literal["contrastive", "shared", "principal"]


def fit_rotation(  # noqa: PLR0913 - what it is fitted on, and how
    pairs: PairVectors,
    widths: Sequence[int],
    *,
    axes: Axes = "contrastive",
    centre: bool = False,
    noise: float = NOISE,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the basis in which the leading coordinates carry most of a domain.

    Args:
        pairs: Full-width embeddings of training pairs.
        widths: Nested widths that prefixes are taken at; only `contrastive_axes` depend on them.
        axes: What orders the coordinates: how well prefixes tell a pair from others
            (`contrastive_axes`), what pairs share (`shared_axes`), or how far texts differ
            (`principal_axes`).
        centre: Subtract the mean when rotating. Shared and principal axes are those of a covariance
            either way: the mean is a direction that all texts share, and so tells none of them
            apart.
        noise: Of axes that are learned.
        seed: Likewise.

    Returns:
        U of shape (d, d) with the axes as columns, and mu of shape (d,), zero unless centred.

    Raises:
        DataError: If an embedding is not finite.

    Source:
        docs/method.md, section 4b.
    """
    texts = np.concatenate([pairs.anchors, pairs.positives]).astype(np.float64)
    if not np.isfinite(texts).all():
        msg = "training.rotation: embeddings of training pairs are not finite; no axes fit them"
        raise DataError(msg)
    mean = texts.mean(axis=0) if centre else np.zeros(texts.shape[1])
    if axes == "principal":
        return principal_axes(texts)[1], mean
    if axes == "shared":
        return shared_axes(pairs.anchors, pairs.positives, pairs.sources)[1], mean
    centred = pairs.centred(mean) if centre else pairs
    return contrastive_axes(centred, widths, noise=noise, seed=seed), mean


def rotate_model(model: SentenceTransformer, basis: np.ndarray, mean: np.ndarray) -> None:
    """Append x' = normalise((x - mu) U) to a model, as modules every consumer understands.

    An uncentred rotation that is already there is composed with the new one.

    Args:
        model: Changed in place.
        basis: U, shape (d, d).
        mean: mu, shape (d,).
    """
    u = torch.as_tensor(np.ascontiguousarray(basis.T), dtype=torch.float32)
    bias = torch.as_tensor(-(mean @ basis), dtype=torch.float32)
    present = find_rotation(model)
    if present is not None and not bool(present.linear.bias.any()):
        # x U1 U2 - mu U2. A centred rotation is normalised before the next one, so it stays.
        present.linear.weight.data = (u @ present.linear.weight.data.cpu()).to(model.device)
        present.linear.bias.data = bias.to(model.device)
        return
    width = len(mean)
    dense = Dense(
        width, width, bias=True, activation_function=nn.Identity(), init_weight=u, init_bias=bias
    )
    dense.requires_grad_(False)
    if not isinstance(model[-1], Normalize):
        model.append(Normalize())
    for module in (dense, Normalize()):
        model.append(module.to(model.device))


def find_rotation(model: SentenceTransformer) -> Dense | None:
    """Return the rotation at the end of a model, if it has one."""
    modules = list(model)
    if (
        len(modules) >= 3  # noqa: PLR2004 - Normalize, Dense, Normalize
        and isinstance(modules[-1], Normalize)
        and isinstance(modules[-2], Dense)
        and isinstance(modules[-3], Normalize)
        and modules[-2].in_features == modules[-2].out_features
    ):
        return modules[-2]
    return None
