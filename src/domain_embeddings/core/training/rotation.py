"""The basis a model is trained in, and the one it ends up in (docs/method.md, section 4b)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.relations import pair_texts
from domain_embeddings.core.encoders.rotation import fit_rotation, rotate_model
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.statistics.eigenspace import fit_eigenspace
from domain_embeddings.core.statistics.moments import accumulate
from domain_embeddings.core.statistics.shrinkage import fit_shrinkage
from domain_embeddings.core.statistics.task_variance import measure_task_variance

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.parameters import RotationParameters

# Reading a stored pair costs nothing; embedding two texts again does.
START_PAIRS = 20_000
END_PAIRS = 2_000
BLOCK_ROWS = 8_192
REZE_SETTINGS = ("sources", "rho", "gamma", "eps", "mode", "eta")
# Below this a vector has no direction; torch's Normalize uses the same.
_TINY = 1e-12


def rotate_start(
    model: SentenceTransformer,
    relation_vectors: Bundle,
    shrinkage: Bundle,
    rotation: RotationParameters,
    *,
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
        relation_vectors: Relation vectors of the reference model.
        shrinkage: REZE's offline result on them.
        rotation: Axes, and whether they are centred.
        reze: Whether the shrinkage is needed; a centred start then computes it again.

    Returns:
        The shrinkage in the rotated basis, with U as the array ``rotation`` and mu as ``centre``.

    Raises:
        DataError: If it has to be computed again and does not say how it was made.
    """
    vectors = relation_vectors["vectors"]
    rows = np.linspace(0, len(vectors) - 1, min(len(vectors), START_PAIRS)).astype(int)
    anchors, positives = np.split(np.asarray(vectors[rows], dtype=np.float64), 2, axis=1)
    sources = np.asarray(relation_vectors["source"])[rows]
    basis, mean = fit_rotation(
        anchors, positives, sources, axes=rotation.axes, centre=rotation.centre
    )
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


def rotate_end(
    model: SentenceTransformer,
    pairs: pd.DataFrame,
    task_specs: Sequence[Mapping[str, Any]],
    rotation: RotationParameters,
    seed: int,
) -> None:
    """Rotate a trained model into the basis of its own embeddings of training text.

    Args:
        model: Changed in place.
        pairs: Training pairs, of which a sample is encoded.
        task_specs: Task specifications, for prompts.
        rotation: Axes, and whether they are centred.
        seed: Of the sample.
    """
    sample = pairs.sample(min(len(pairs), END_PAIRS), random_state=seed)
    anchors, positives = pair_texts(sample, task_specs, model.prompts)
    embeddings = encode(model, anchors + positives, label="rotation")
    halves = embeddings[: len(sample)], embeddings[len(sample) :]
    sources = sample["task"].to_numpy()
    rotate_model(model, *fit_rotation(*halves, sources, axes=rotation.axes, centre=rotation.centre))
