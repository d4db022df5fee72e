"""Prefix rotation: an orthogonal change of basis that puts the variance of a domain first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

from domain_embeddings.core.statistics.eigenspace import canonical_signs

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def fit_rotation(embeddings: np.ndarray, *, centre: bool) -> tuple[np.ndarray, np.ndarray]:
    """Fit the basis in which the leading coordinates carry the most variance.

    Args:
        embeddings: Full-width embeddings of training text, shape (n, d).
        centre: Subtract the mean when rotating. The axes are those of the covariance either way:
            the mean is a direction that all texts share, and so tells none of them apart.

    Returns:
        U of shape (d, d), eigenvectors as columns by descending eigenvalue with canonical signs,
        and mu of shape (d,), zero unless centred.

    Source:
        docs/method.md, section 4b.
    """
    x = np.asarray(embeddings, dtype=np.float64)
    mean = x.mean(axis=0)
    _, vectors = np.linalg.eigh(np.cov(x, rowvar=False))
    return canonical_signs(vectors[:, ::-1]), mean if centre else np.zeros_like(mean)


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
