"""Nodes of the REZE stage: from relation vectors to the shrinkage that training aims at."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from domain_embeddings.core.bundle import Bundle, require_same
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics import shrinkage as shrinkages
from domain_embeddings.core.statistics import task_variance as task_variances
from domain_embeddings.core.statistics.eigenspace import Eigenspace, fit_eigenspace
from domain_embeddings.core.statistics.moments import Moments, accumulate
from domain_embeddings.core.statistics.task_variance import TaskVariance
from domain_embeddings.parameters import RezeParameters

logger = logging.getLogger(__name__)

# Two bundles belong together if they stem from the same vectors.
PROVENANCE = (
    "sources",
    "model",
    "revision",
    "weight_hash",
    "pooling",
    "prompts",
    "max_length",
    "width",
    "pair_table_hash",
)


def accumulate_moments(relation_vectors: Bundle, reze: RezeParameters) -> Bundle:
    """Compute count, means and scatter in one streaming pass.

    Args:
        relation_vectors: Arrays vectors (N, 2d) and source (N,), memory-mapped; the moments too,
            if several workers have taken them while they encoded.
        reze: Parameters; block_rows bounds the memory in use.

    Returns:
        Bundle of count (S,), mean (S, D), global_mean (D,), scatter (D, D).

    Raises:
        DataError: If the vectors do not have the width the header announces, or are empty.
    """
    _check_width(relation_vectors)
    sources = relation_vectors.header["sources"]
    if "moments_scatter" in relation_vectors.arrays:
        names = ("count", "mean", "global_mean", "scatter")
        moments = Moments(**{n: np.array(relation_vectors[f"moments_{n}"]) for n in names})
    else:
        moments = accumulate(
            relation_vectors.row_blocks("vectors", reze.block_rows),
            relation_vectors.row_blocks("source", reze.block_rows),
            len(sources),
        )
    for name, count in zip(sources, moments.count, strict=True):
        if not count:
            logger.warning("Source '%s' has no pairs and takes no part in REZE.", name)
    if np.count_nonzero(moments.count) == 1:
        logger.warning(
            "There is only one source of pairs: REZE compares sources, so there is nothing to "
            "shrink and its loss keeps the model close to the reference (plain distillation)."
        )
    logger.info(
        "Moments of %d relation vectors of width %d from %d sources.",
        moments.rows,
        moments.global_mean.size,
        len(sources),
    )
    arrays = {
        "count": moments.count,
        "mean": moments.mean,
        "global_mean": moments.global_mean,
        "scatter": moments.scatter,
    }
    return Bundle(arrays, dict(relation_vectors.header))


def decompose(relation_moments: Bundle, reze: RezeParameters) -> Bundle:
    """Decompose the covariance into the eigenspace of relation vectors.

    Args:
        relation_moments: Output of accumulate_moments.
        reze: Parameters; rho sets the active dimensions.

    Returns:
        Bundle of eigenvalues (D,), eigenvectors (D, D), mean (D,), active (D,).
    """
    moments = _moments(relation_moments)
    eigenspace = fit_eigenspace(moments.covariance, moments.global_mean, reze.rho)
    logger.info(
        "%d of %d dimensions carry %.4g of the variance and are active.",
        int(eigenspace.active.sum()),
        len(eigenspace.active),
        reze.rho,
    )
    arrays = {
        "eigenvalues": eigenspace.eigenvalues,
        "eigenvectors": eigenspace.eigenvectors,
        "mean": eigenspace.mean,
        "active": eigenspace.active,
    }
    return Bundle(arrays, {**relation_moments.header, "rho": reze.rho})


def measure_task_variance(
    relation_moments: Bundle, relation_eigenspace: Bundle, reze: RezeParameters
) -> Bundle:
    """Measure in which dimensions the sources differ more than usual.

    Args:
        relation_moments: Output of accumulate_moments.
        relation_eigenspace: Output of decompose.
        reze: Parameters; gamma and eps set the thresholds.

    Returns:
        Bundle of source_means (S, D), median, variance, half_width (D,), threshold (1,),
        active (D,), present (S,).

    Raises:
        ProvenanceError: If the two inputs stem from different vectors.
    """
    require_same(relation_moments.header, relation_eigenspace.header, PROVENANCE)
    variance = task_variances.measure_task_variance(
        _moments(relation_moments), _eigenspace(relation_eigenspace), reze.gamma, reze.eps
    )
    logger.info(
        "%d of %d active dimensions differ between sources beyond the threshold.",
        int(variance.variant.sum()),
        int(variance.active.sum()),
    )
    arrays = {
        "source_means": variance.source_means,
        "median": variance.median,
        "variance": variance.variance,
        "half_width": variance.half_width,
        "threshold": np.array([variance.threshold]),
        "active": variance.active,
        "present": variance.present,
    }
    return Bundle(arrays, {**relation_eigenspace.header, "gamma": reze.gamma, "eps": reze.eps})


def fit_shrinkage(
    relation_eigenspace: Bundle, task_variance: Bundle, reze: RezeParameters
) -> Bundle:
    """Decide what the target of each source changes against the reference.

    Args:
        relation_eigenspace: Output of decompose.
        task_variance: Output of measure_task_variance.
        reze: Parameters; shrinkage is the mode and eta the strength.

    Returns:
        Bundle of columns (K,), basis (D, K), mean (D,), offset and scale (S, K), shrunk (S, D);
        the header's note says why it is empty, if it is.

    Raises:
        ProvenanceError: If the two inputs stem from different vectors.
    """
    require_same(relation_eigenspace.header, task_variance.header, (*PROVENANCE, "rho"))
    variance = _task_variance(task_variance)
    shrinkage = shrinkages.fit_shrinkage(
        variance, _eigenspace(relation_eigenspace), reze.shrinkage, reze.eta, reze.eps
    )
    _report(shrinkage.shrunk, shrinkage.note, task_variance.header["sources"], variance)
    arrays = {
        "columns": shrinkage.columns,
        "basis": shrinkage.basis,
        "mean": shrinkage.mean,
        "offset": shrinkage.offset,
        "scale": shrinkage.scale,
        "shrunk": shrinkage.shrunk,
    }
    settings = {"mode": reze.shrinkage, "eta": reze.eta, "note": shrinkage.note}
    return Bundle(arrays, {**task_variance.header, **settings})


def _report(shrunk: np.ndarray, note: str, sources: list[str], variance: TaskVariance) -> None:
    """Log what was found, source by source, or why there is nothing."""
    if note:
        logger.warning("REZE shrinks nothing: %s.", note)
        return
    for name, row in zip(sources, shrunk, strict=True):
        logger.info(
            "Source '%s' is shrunk in %d of %d active dimensions.",
            name,
            int(row.sum()),
            int(variance.active.sum()),
        )


def _check_width(relation_vectors: Bundle) -> None:
    """Refuse vectors that are not pairs of embeddings of the announced width."""
    found = relation_vectors["vectors"].shape
    width = relation_vectors.header["width"]
    if len(found) != 2 or found[1] != 2 * width:  # noqa: PLR2004
        msg = (
            f"relation_vectors: vectors of shape {found} are not pairs of embeddings of width "
            f"{width}; run the pipeline again from the stage 'relations'."
        )
        raise DataError(msg)


def _moments(bundle: Bundle) -> Moments:
    return Moments(**_fields(bundle, "count", "mean", "global_mean", "scatter"))


def _eigenspace(bundle: Bundle) -> Eigenspace:
    return Eigenspace(**_fields(bundle, "eigenvalues", "eigenvectors", "mean", "active"))


def _task_variance(bundle: Bundle) -> TaskVariance:
    names = ("source_means", "median", "variance", "half_width", "active", "present")
    return TaskVariance(threshold=float(bundle["threshold"][0]), **_fields(bundle, *names))


def _fields(bundle: Bundle, *names: str) -> dict[str, Any]:
    return {name: bundle[name] for name in names}
