"""Is one model better than another? Paired differences, over test rows and over seeds.

Everything here reads bootstrap replicates that were stored when the models were scored. Replicate r
of a task took the same test rows for every model, run and seed, so replicates subtract row by row.

With several seeds of training there are two levels of chance: the test rows, which all seeds share,
and the seeds. Both are resampled (two-level bootstrap). Picking among the seeds at hand is not
enough: three seeds can be picked in ten ways, and such an interval covers the truth 75 times of a
hundred where it says 95. The seed level is therefore drawn from Student's t around the mean over
the seeds, which for normal seed effects covers as often as it says, at the price of wide intervals
where there are few seeds. Two seeds tell next to nothing (t with one degree of freedom).

Source: Owen (2007), "The pigeonhole bootstrap", for resampling crossed factors independently;
Hesterberg (2015), "What teachers should know about the bootstrap", for why few draws need t;
Davison and Hinkley (1997), section 4.2, for the +1; Holm (1979) for the correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import t as student

from domain_embeddings.core.statistics.bootstrap import interval


@dataclass(frozen=True)
class SeedScores:
    """One score of one model (or of one kind of vectors), measured once per seed.

    Args:
        values: Score on all test rows, shape (seeds,).
        replicates: Bootstrap scores, shape (seeds, R); replicate r takes the same rows everywhere.
            NaN where a resample has no score.
    """

    values: np.ndarray
    replicates: np.ndarray

    @staticmethod
    def single(value: float, replicates: npt.ArrayLike) -> SeedScores:
        """Wrap the score of one seed."""
        return SeedScores(np.array([value]), np.atleast_2d(np.asarray(replicates, dtype=float)))


@dataclass(frozen=True)
class Difference:
    """A paired difference and what chance alone could have made of it.

    Args:
        value: Left minus right, the mean over the seeds.
        low: Lower bound of the interval; NaN without replicates.
        high: Upper bound.
        p: Two-sided p-value of "no difference"; NaN without replicates.
        seeds: How many seeds it was taken over.
        replicates: Bootstrap replicates of the difference, shape (R,).
    """

    value: float
    low: float
    high: float
    p: float
    seeds: int
    replicates: np.ndarray


def paired_difference(
    left: SeedScores, right: SeedScores, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Compare two models on the same test rows, over one or several seeds.

    Args:
        left: The model in question; its seeds in the same order as those of ``right``.
        right: What it is compared with. A side with a single seed is taken to have no seed effect,
            as the untouched model has none, and stands against every seed of the other side.
        confidence: Mass of the interval (0..1).
        seed: Seed of the draws at the level of the seeds.

    Returns:
        The difference with its interval and p-value.

    Raises:
        ValueError: If the two sides have different numbers of seeds (and neither has one), or
            different numbers of replicates.
    """
    seeds = max(len(left.values), len(right.values))
    if {len(left.values), len(right.values)} - {1, seeds}:
        msg = (
            f"seeds cannot be paired: {len(left.values)} on the left, {len(right.values)} on the "
            "right; compare the seeds that both have"
        )
        raise ValueError(msg)
    if left.replicates.shape[1] != right.replicates.shape[1]:
        msg = (
            f"replicates cannot be paired: {left.replicates.shape[1]} on the left, "
            f"{right.replicates.shape[1]} on the right (evaluation.bootstrap differs)"
        )
        raise ValueError(msg)
    by_seed = np.broadcast_to(left.values - right.values, (seeds,))
    rows = (left.replicates - right.replicates).mean(axis=0)
    replicates = rows + seed_noise(by_seed, len(rows), seed)
    low, high = interval(replicates, confidence)
    value = float(by_seed.mean())
    return Difference(value, low, high, two_sided_p(replicates), seeds, replicates)


def seed_noise(values: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Draw how far the mean over some seeds may be from the mean over all seeds.

    Args:
        values: One value per seed, shape (seeds,).
        count: Number of draws.
        seed: Seed of the order of the draws, which are spread evenly over the distribution.

    Returns:
        Draws of Student's t with seeds - 1 degrees of freedom, scaled to the standard error of the
        mean, shape (count,); zeros for a single seed, whose effect nothing is known about.
    """
    seeds = len(values)
    if seeds == 1 or count == 0:
        return np.zeros(count)
    levels = (np.arange(count) + 0.5) / count
    draws = student.ppf(np.random.default_rng(seed).permutation(levels), df=seeds - 1)
    return np.asarray(draws * np.std(values, ddof=1) / np.sqrt(seeds))


def two_sided_p(replicates: npt.ArrayLike) -> float:
    """Compute the two-sided bootstrap p-value of "the difference is zero".

    Args:
        replicates: Replicates of the difference, shape (R,); NaN are left out.

    Returns:
        Twice the smaller share of replicates on one side of zero, zero itself counted on both and
        one more replicate added to each: 2 / (R + 1) to 1, never 0. NaN without replicates.
    """
    defined = np.asarray(replicates, dtype=np.float64)
    defined = defined[~np.isnan(defined)]
    if not defined.size:
        return float("nan")
    tail = min(np.count_nonzero(defined <= 0), np.count_nonzero(defined >= 0))
    return float(min(1.0, 2.0 * (tail + 1) / (defined.size + 1)))


def holm(p_values: npt.ArrayLike) -> np.ndarray:
    """Correct p-values for being many, by Holm's step-down method.

    Reject what is at most alpha: the chance of one or more false claims in the whole family is then
    at most alpha, whatever the dependence between its tests.

    Args:
        p_values: The p-values of one family, shape (m,); NaN (no test) stay NaN and do not count.

    Returns:
        Corrected p-values, shape (m,), in the order given.
    """
    p = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(p.shape, np.nan)
    tests = np.flatnonzero(~np.isnan(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    factors = len(order) - np.arange(len(order))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return corrected
