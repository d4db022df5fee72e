"""Prefix rotation: an orthogonal change of basis that puts what matters in a domain first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

from domain_embeddings.core.statistics.axes import principal_axes, shared_axes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def fit_rotation(
    anchors: np.ndarray,
    positives: np.ndarray,
    sources: np.ndarray,
    *,
    axes: Literal["shared", "principal"] = "shared",
    centre: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the basis in which the leading coordinates carry most of a domain.

    Args:
        anchors: Full-width embeddings of training text, shape (n, d).
        positives: Embeddings of their positives, shape (n, d).
        sources: Source of each pair, shape (n,).
        axes: Order coordinates by what pairs share (`shared_axes`), or by how far texts differ
            (`principal_axes`).
        centre: Subtract the mean when rotating. The axes are those of a covariance either way: the
            mean is a direction that all texts share, and so tells none of them apart.

    Returns:
        U of shape (d, d) with the axes as columns, and mu of shape (d,), zero unless centred.

    Source:
        docs/method.md, section 4b.
    """
    texts = np.concatenate([anchors, positives]).astype(np.float64)
    mean = texts.mean(axis=0)
    if axes == "principal":
        _, basis = principal_axes(texts)
    else:
        _, basis = shared_axes(anchors, positives, sources)
    return basis, mean if centre else np.zeros_like(mean)


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
