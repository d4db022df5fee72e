"""The basis a model is trained in, and the one it ends up in (docs/method.md, section 4b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.batching import encode_distinct
from domain_embeddings.core.encoders.pair_vectors import PairVectors
from domain_embeddings.core.encoders.relations import pair_texts
from domain_embeddings.core.encoders.rotation import fit_rotation, rotate_model
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.eigenspace import fit_eigenspace
from domain_embeddings.core.statistics.moments import accumulate
from domain_embeddings.core.statistics.shrinkage import fit_shrinkage
from domain_embeddings.core.statistics.task_variance import measure_task_variance
from domain_embeddings.core.training.distributed import from_first

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.parameters import RotationParameters

BLOCK_ROWS = 8_192
REZE_SETTINGS = ("sources", "rho", "gamma", "eps", "mode", "eta")
# Below this a vector has no direction; torch's Normalize uses the same.
_TINY = 1e-12


def rotate_start(  # noqa: PLR0913 - what is rotated, what it is fitted on, and how
    model: SentenceTransformer,
    pairs: pd.DataFrame,
    relation_vectors: Bundle,
    shrinkage: Bundle,
    rotation: RotationParameters,
    *,
    widths: Sequence[int],
    seed: int,
    reze: bool = True,
) -> Bundle:
    """Rotate a model into the basis of the reference's own domain embeddings.

    Nothing is encoded again. An uncentred rotation U of both halves turns r into r blockdiag(U, U),
    so the shrinkage moves into the same basis as it is. A centred one is normalised anew and so no
    linear map of r: the statistics of REZE are computed again from the stored vectors, turned block
    by block, with the settings that the shrinkage was made with. The objective turns the vectors
    of a batch as it reads them.

    Args:
        model: Changed in place.
        pairs: Training pairs.
        relation_vectors: Their relation vectors by the reference model.
        shrinkage: REZE's offline result on them.
        rotation: Axes, whether they are centred, and how many pairs they are fitted on.
        widths: Nested widths.
        seed: Of axes that are learned.
        reze: Whether the shrinkage is needed; a centred start then computes it again.

    Returns:
        The shrinkage in the rotated basis, with U as the array ``rotation`` and mu as ``centre``.

    Raises:
        DataError: If it has to be computed again and does not say how it was made.
    """

    def fit() -> tuple[np.ndarray, np.ndarray]:
        rows = np.linspace(0, len(pairs) - 1, min(len(pairs), rotation.pairs)).astype(int)
        vectors = np.asarray(relation_vectors["vectors"][rows], dtype=np.float64)
        found = PairVectors.of(pairs.iloc[rows], *np.split(vectors, 2, axis=1))
        return fit_as_asked(found, rotation, widths, seed)

    # Another processor may learn slightly other axes, and all workers have to train in the same.
    basis, mean = from_first(fit)
    rotate_model(model, basis, mean)
    if rotation.centre:
        moved = _shrink_again(relation_vectors, shrinkage, basis, mean) if reze else shrinkage
        arrays = {**moved.arrays, "rotation": basis, "centre": mean}
        return Bundle(arrays, moved.header)
    both = np.kron(np.eye(2), basis)
    arrays = {
        **shrinkage.arrays,
        "basis": both.T @ shrinkage["basis"],
        "mean": shrinkage["mean"] @ both,
        "rotation": basis,
    }
    return Bundle(arrays, shrinkage.header)


def turn(vectors: np.ndarray, basis: np.ndarray, mean: np.ndarray | None) -> np.ndarray:
    """Bring stored relation vectors into a rotated basis.

    Args:
        vectors: Halves of norm 1 side by side, shape (rows, 2d).
        basis: U, shape (d, d).
        mean: mu, shape (d,), or None for an uncentred rotation, which leaves norms as they are.

    Returns:
        [normalise((a - mu) U) ; normalise((p - mu) U)], shape (rows, 2d), in the precision of
        vectors and basis.
    """
    halves = vectors.reshape(len(vectors), 2, -1)
    if mean is None:
        return (halves @ basis).reshape(len(vectors), -1)
    turned = (halves - mean) @ basis
    norms = np.linalg.norm(turned, axis=2, keepdims=True)
    return (turned / np.maximum(norms, _TINY)).reshape(len(vectors), -1)


def _shrink_again(
    relation_vectors: Bundle, shrinkage: Bundle, basis: np.ndarray, mean: np.ndarray
) -> Bundle:
    """Compute the shrinkage of turned relation vectors, in one pass over them."""
    missing = [key for key in REZE_SETTINGS if key not in shrinkage.header]
    if missing:
        msg = (
            f"shrinkage: does not say how it was made ({', '.join(missing)}), which a centred "
            "start needs; run the pipeline again from the stage 'reze'."
        )
        raise DataError(msg)
    settings = shrinkage.header
    moments = accumulate(
        (
            turn(np.asarray(block, dtype=np.float64), basis, mean)
            for block in relation_vectors.row_blocks("vectors", BLOCK_ROWS)
        ),
        relation_vectors.row_blocks("source", BLOCK_ROWS),
        len(settings["sources"]),
    )
    eigenspace = fit_eigenspace(moments.covariance, moments.global_mean, settings["rho"])
    variance = measure_task_variance(moments, eigenspace, settings["gamma"], settings["eps"])
    made = fit_shrinkage(variance, eigenspace, settings["mode"], settings["eta"], settings["eps"])
    names = ("columns", "basis", "mean", "offset", "scale", "shrunk")
    return Bundle({name: getattr(made, name) for name in names}, {**settings, "note": made.note})


def rotate_end(  # noqa: PLR0913 - what is rotated, what it is fitted on, and how
    model: SentenceTransformer,
    pairs: pd.DataFrame,
    task_specs: Sequence[Mapping[str, Any]],
    rotation: RotationParameters,
    *,
    widths: Sequence[int],
    seed: int,
) -> None:
    """Rotate a trained model into the basis of its own embeddings of training text.

    Args:
        model: Changed in place.
        pairs: Training pairs, of which a sample is encoded.
        task_specs: Task specifications, for prompts.
        rotation: Axes, whether they are centred, and how many pairs they are fitted on.
        widths: Nested widths.
        seed: Of the sample, and of axes that are learned.
    """
    sample = pairs.sample(min(len(pairs), rotation.pairs), random_state=seed)
    anchors, positives = pair_texts(sample, task_specs, model.prompts)
    embeddings = encode_distinct(model, anchors + positives, label="rotation")
    found = PairVectors.of(sample, *np.split(embeddings, 2))
    rotate_model(model, *fit_as_asked(found, rotation, widths, seed))


def fit_as_asked(
    pairs: PairVectors, rotation: RotationParameters, widths: Sequence[int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Fit axes and mean as the section ``training.rotation`` asks for.

    Args:
        pairs: Embeddings of training pairs.
        rotation: Axes, centring and noise.
        widths: Nested widths.
        seed: Of axes that are learned.

    Returns:
        U (d, d) and mu (d,), as of `fit_rotation`.
    """
    return fit_rotation(
        pairs, widths, axes=rotation.axes, centre=rotation.centre, noise=rotation.noise, seed=seed
    )
