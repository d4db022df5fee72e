"""Where sources differ: task variance in the eigenspace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from domain_embeddings.core.statistics.eigenspace import Eigenspace
from domain_embeddings.core.statistics.moments import Moments


@dataclass(frozen=True)
class TaskVariance:
    """Differences between source means, per dimension of the eigenspace.

    Args:
        source_means: mu, shape (S, D); the median for a source without rows.
        median: m, component-wise median over sources, shape (D,).
        variance: v, mean squared difference from the median, shape (D,).
        half_width: theta_j, half the width of the band around the median, shape (D,).
        threshold: theta, the variance above which a dimension is task-variant.
        active: A, shape (D,), bool.
        present: Which sources have rows, shape (S,), bool.
    """

    source_means: np.ndarray
    median: np.ndarray
    variance: np.ndarray
    half_width: np.ndarray
    threshold: float
    active: np.ndarray
    present: np.ndarray

    @property
    def variant(self) -> np.ndarray:
        """Which dimensions are active and task-variant, shape (D,), bool."""
        return self.active & (self.variance > self.threshold)


def source_means(moments: Moments, eigenspace: Eigenspace) -> np.ndarray:
    """Express the mean of each source in the eigenspace, mu_s = W^T (mean_s - u).

    Args:
        moments: Moments over S sources and D dimensions.
        eigenspace: Eigenspace of the same vectors.

    Returns:
        mu, shape (S, D).
    """
    means: np.ndarray = (moments.mean - eigenspace.mean) @ eigenspace.eigenvectors
    return means


def measure_task_variance(
    moments: Moments, eigenspace: Eigenspace, gamma: float = 1.0, eps: float = 1e-8
) -> TaskVariance:
    """Measure how much sources differ in each dimension and set the thresholds.

    Source: docs/method.md, section 1.

    Args:
        moments: Moments of the relation vectors.
        eigenspace: Eigenspace of the same vectors.
        gamma: Width of the tolerated band (gamma_t).
        eps: Guard of the threshold, relative to the median of abs(mu).

    Returns:
        Medians, variances and thresholds; sources without rows take no part in them.
    """
    present = moments.count > 0
    means = source_means(moments, eigenspace)
    median = np.median(means[present], axis=0)
    means[~present] = median
    deviation = means[present] - median
    variance = np.mean(deviation**2, axis=0)
    half_width = gamma * np.mean(np.abs(deviation), axis=0)
    active = eigenspace.active
    guard = absolute_eps(means[present], active, eps)
    threshold = _threshold(variance[active], gamma, guard)
    return TaskVariance(means, median, variance, half_width, threshold, active, present)


def absolute_eps(means: np.ndarray, active: np.ndarray, eps: float) -> float:
    """Turn the relative ``eps`` into one for these data.

    Args:
        means: mu of the sources that have rows, shape (S, D).
        active: Which dimensions count, shape (D,), bool.
        eps: Relative to the median of abs(mu) over sources and active dimensions.

    Returns:
        eps in the unit of mu; zero if no dimension is active.
    """
    magnitudes = np.abs(means[:, active])
    return eps * float(np.median(magnitudes)) if magnitudes.size else 0.0


def _threshold(variance: np.ndarray, gamma: float, guard: float) -> float:
    """Compute theta = median(v) + gamma (MAD(v) + eps) over the active dimensions."""
    if not variance.size:
        return 0.0
    centre = float(np.median(variance))
    spread = float(np.median(np.abs(variance - centre)))
    return centre + gamma * (spread + guard)
