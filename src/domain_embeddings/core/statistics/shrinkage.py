"""Soft shrinkage of source means towards the band around their median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.statistics.eigenspace import Eigenspace
from domain_embeddings.core.statistics.task_variance import TaskVariance, absolute_eps

Mode = Literal["translate", "scale", "printed"]

# Relative to the largest distance of a source from the median: below it a move is rounding.
_ROUNDING = 1e-12
_INSTEAD = "the target is the reference itself: plain distillation to the reference model"


@dataclass(frozen=True)
class Shrinkage:
    """How the target of each source differs from the reference.

    In the touched dimensions, z = basis^T (r0 - mean) changes by offset[s] + (scale[s] - 1) * z.

    Args:
        columns: Touched dimensions of the eigenspace, shape (K,), int64.
        basis: Their eigenvectors, shape (D, K).
        mean: Origin of the coordinates (u), shape (D,).
        offset: Shape (S, K); zero in the modes that scale.
        scale: Shape (S, K); one in the mode that translates.
        shrunk: Which source is shrunk in which dimension, shape (S, D), bool.
        note: Why nothing is shrunk and what happens instead; empty if something is.
    """

    columns: np.ndarray
    basis: np.ndarray
    mean: np.ndarray
    offset: np.ndarray
    scale: np.ndarray
    shrunk: np.ndarray
    note: str


def fit_shrinkage(
    variance: TaskVariance,
    eigenspace: Eigenspace,
    mode: Mode = "translate",
    eta: float = 0.7,
    eps: float = 1e-8,
) -> Shrinkage:
    """Decide which source is shrunk in which dimension, and by how much.

    Source: docs/method.md, section 1. ``printed`` is the published rule, which points the wrong way
    for negative source means; ``scale`` repairs its sign; ``translate`` moves the source mean
    towards the band by exactly ``eta`` of its distance and leaves the variance alone.

    Args:
        variance: Source means and thresholds.
        eigenspace: Eigenspace they are expressed in.
        mode: ``translate``, ``scale`` or ``printed``.
        eta: Strength, in [0, 1].
        eps: Guard of the division, relative to the median of abs(mu).

    Returns:
        The shrinkage; empty, with a note, where the target is the reference itself.

    Raises:
        ParameterError: If the mode or eta is not allowed.
    """
    _check_arguments(mode, eta)
    shrunk = shrunk_mask(variance)
    note = _why_empty(variance, shrunk, eta)
    if note:
        shrunk = np.zeros_like(shrunk)
    columns = np.flatnonzero(shrunk.any(axis=0))
    guard = absolute_eps(variance.source_means[variance.present], variance.active, eps)
    offset, scale = _changes(variance, columns, mode, eta, guard)
    touched = shrunk[:, columns]
    return Shrinkage(
        columns=columns.astype(np.int64),
        basis=np.ascontiguousarray(eigenspace.eigenvectors[:, columns]),
        mean=eigenspace.mean,
        offset=np.where(touched, offset, 0.0),
        scale=np.where(touched, scale, 1.0),
        shrunk=shrunk,
        note=note,
    )


def shrunk_mask(variance: TaskVariance) -> np.ndarray:
    """Find which source lies outside the band in which task-variant dimension.

    Args:
        variance: Source means and thresholds.

    Returns:
        shrunk(s, j), shape (S, D), bool.
    """
    outside = np.abs(variance.source_means - variance.median) >= variance.half_width
    shrunk: np.ndarray = outside & variance.variant & variance.present[:, None]
    return shrunk


def shrink(shrinkage: Shrinkage, vectors: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Compute the shrunk targets of reference relation vectors.

    Source: docs/method.md, section 2.

    Args:
        shrinkage: Fitted shrinkage over S sources.
        vectors: Reference relation vectors r0, shape (rows, D).
        source: Source index of each row, shape (rows,).

    Returns:
        rhat, float64, shape (rows, D).
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    z = (vectors - shrinkage.mean) @ shrinkage.basis
    change = shrinkage.offset[source] + (shrinkage.scale[source] - 1.0) * z
    target: np.ndarray = vectors + change @ shrinkage.basis.T
    return target


def _changes(
    variance: TaskVariance, columns: np.ndarray, mode: Mode, eta: float, guard: float
) -> tuple[np.ndarray, np.ndarray]:
    """Compute offset and scale of every source in the touched dimensions, shape (S, K) each."""
    means = variance.source_means[:, columns]
    median = variance.median[columns]
    edge = median + np.sign(means - median) * variance.half_width[columns]
    step = eta * (edge - means)
    if mode == "translate":
        return step, np.ones_like(step)
    denominator = np.abs(means) + guard
    if mode == "scale":
        denominator *= np.sign(means)
    # A mean of zero cannot be moved by a factor: the factor stays one.
    relative = np.divide(step, denominator, out=np.zeros_like(step), where=denominator != 0.0)
    return np.zeros_like(step), np.clip(1.0 + relative, 0.0, 1.0)


def _why_empty(variance: TaskVariance, shrunk: np.ndarray, eta: float) -> str:
    """Say in words why there is nothing to shrink, or return an empty string."""
    if variance.present.sum() < 2:  # noqa: PLR2004
        return f"there is only one source, so nothing to compare it with; {_INSTEAD}"
    if not variance.active.any():
        return f"the relation vectors do not vary, so no dimension is active; {_INSTEAD}"
    if eta == 0.0:
        return f"eta is 0, so no source is moved; {_INSTEAD}"
    if not shrunk.any():
        return f"no source stands out in any dimension; {_INSTEAD}"
    distance = np.abs(variance.source_means - variance.median)
    beyond = (distance - variance.half_width)[shrunk]
    if beyond.max() <= _ROUNDING * distance[shrunk].max():
        return (
            "every source that stands out lies on the edge of its band, as two sources always do "
            f"with gamma 1; {_INSTEAD}"
        )
    return ""


def _check_arguments(mode: str, eta: float) -> None:
    if mode not in ("translate", "scale", "printed"):
        msg = f"reze.shrinkage: {mode!r} is not one of translate, scale, printed"
        raise ParameterError(msg)
    if not 0.0 <= eta <= 1.0:
        msg = f"reze.eta: {eta!r} is not between 0 and 1"
        raise ParameterError(msg)
