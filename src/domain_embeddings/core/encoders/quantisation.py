"""Embeddings in fewer bits: int8 with stored ranges, and binary.

Names and codes are those of sentence-transformers' ``quantize_embeddings(precision=...)``, so that
its semantic search, faiss and usearch read them. Ranges are taken from training text once and
stored: the code of a text never depends on what it is encoded with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import DataError, ProvenanceError

FLOAT32 = "float32"
INT8 = "int8"
BINARY = "binary"
PRECISIONS = (FLOAT32, INT8, BINARY)

_STEPS = 255
_ZERO = 128
_FEWEST_TEXTS = 2


def bytes_per_vector(width: int, precision: str) -> int:
    """Return the size of one stored vector, without what an index adds.

    Args:
        width: Number of coordinates.
        precision: One of `PRECISIONS`.
    """
    return {FLOAT32: 4 * width, INT8: width, BINARY: -(-width // 8)}[precision]


def fit_ranges(vectors: np.ndarray, width: int) -> np.ndarray:
    """Take the range of every coordinate from a calibration set.

    Args:
        vectors: Full-width embeddings of training text, shape (n, d), n >= 2.
        width: Prefix width m; a prefix is normalised before its ranges are taken.

    Returns:
        Smallest and largest value, shape (2, m), float32.

    Raises:
        DataError: There are too few texts.

    Source: docs/method.md, section 8.
    """
    if len(vectors) < _FEWEST_TEXTS:
        msg = (
            f"int8 ranges are taken from training text and need at least {_FEWEST_TEXTS} texts, "
            f"got {len(vectors)}; raise evaluation.fit_pairs"
        )
        raise DataError(msg)
    cut = prefix(np.asarray(vectors), width)
    return np.stack([cut.min(axis=0), cut.max(axis=0)]).astype(np.float32)


@dataclass(frozen=True)
class Quantiser:
    """Turns prefixes of one width into the codes of an index, and back into what it compares.

    Args:
        precision: One of `PRECISIONS`.
        ranges: Smallest and largest value per coordinate, shape (2, m); for int8 only.
    """

    precision: str = FLOAT32
    ranges: np.ndarray | None = None

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Return the codes of unit vectors.

        Args:
            vectors: Prefixes, shape (n, m), float32.

        Returns:
            float32: the vectors. int8: shape (n, m), int8, ``floor((x - low) / step) - 128`` with
            step = (high - low) / 255; values beyond the range get the code of its end. binary:
            the signs, eight to a byte, shape (n, ceil(m / 8)), int8 (packed bits - 128).
        """
        if self.precision == FLOAT32:
            return vectors
        if self.precision == BINARY:
            bits = np.packbits(vectors > 0, axis=-1)
            return (bits.astype(np.int16) - _ZERO).astype(np.int8)
        low, step = self._scale
        codes = np.clip(np.floor((vectors - low) / np.where(step == 0, 1, step)), 0, _STEPS)
        return (codes - _ZERO).astype(np.int8)

    def decode(self, codes: np.ndarray, width: int) -> np.ndarray:
        """Return the vectors that an index compares in place of the original ones.

        Args:
            codes: What `encode` returned.
            width: Number of coordinates m.

        Returns:
            Shape (n, m), float32. int8: the middle of each step, as faiss restores it. binary: the
            signs over sqrt(m), whose dot product is 1 - 2 hamming / m.
        """
        if self.precision == FLOAT32:
            return codes
        if self.precision == BINARY:
            bits = np.unpackbits(unsigned(codes), axis=-1, count=width)
            return np.where(bits == 1, 1.0, -1.0).astype(np.float32) / np.float32(np.sqrt(width))
        low, step = self._scale
        middle = codes.astype(np.float32) + np.float32(_ZERO + 0.5)
        return np.asarray(low + middle * step, dtype=np.float32)

    def restore(self, vectors: np.ndarray) -> np.ndarray:
        """Return what is left of vectors after a way through their codes: shape (n, m), float32."""
        return self.decode(self.encode(vectors), vectors.shape[-1])

    @property
    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower bound and step of every coordinate, shape (m,); a constant one has the step 0."""
        if self.ranges is None:
            msg = "int8 needs ranges"
            raise ValueError(msg)
        low, high = self.ranges.astype(np.float32)
        return low, (high - low) / np.float32(_STEPS)


def unsigned(codes: np.ndarray) -> np.ndarray:
    """Return codes as the bytes that faiss stores: int8 + 128, shape unchanged, uint8."""
    return codes.view(np.uint8) ^ np.uint8(_ZERO)


def calibrate(
    vectors: Mapping[str, np.ndarray],
    widths: Sequence[int],
    headers: Mapping[str, Mapping[str, Any]],
) -> Bundle:
    """Take the int8 ranges of every model and width, for everybody who quantises later.

    Args:
        vectors: Full-width embeddings of training text by model name, shape (n, d).
        widths: Prefix widths.
        headers: Provenance of the models by name; model, revision and weight hash are kept.

    Returns:
        Arrays ``<model>_<width>`` of shape (2, width), float32; the header has ``widths``,
        ``texts`` (how many were looked at, by model) and ``models``.
    """
    arrays = {
        _key(name, width): fit_ranges(rows, width)
        for name, rows in vectors.items()
        for width in widths
    }
    kept = ("model", "revision", "weight_hash")
    header = {
        "widths": [int(width) for width in widths],
        "texts": {name: len(rows) for name, rows in vectors.items()},
        "models": {
            name: {key: headers[name].get(key) for key in kept if key in headers[name]}
            for name in vectors
        },
    }
    return Bundle(arrays, header)


def quantiser(
    precision: str,
    model: str,
    width: int,
    ranges: Bundle | None = None,
    *,
    weight_hash: str | None = None,
) -> Quantiser:
    """Return the quantiser of a model and width.

    Args:
        precision: One of `PRECISIONS`.
        model: Name of the model, as in the ranges.
        width: Prefix width.
        ranges: The result of `calibrate`; needed for int8 only.
        weight_hash: Weights that are quantised, to refuse ranges of other ones.

    Raises:
        DataError: There are no ranges for this model and width.
        ProvenanceError: The ranges belong to other weights.
    """
    if precision != INT8:
        return Quantiser(precision)
    if ranges is None or _key(model, width) not in ranges.arrays:
        known = [] if ranges is None else sorted(ranges.arrays)
        msg = (
            f"int8 needs the ranges of the model '{model}' at width {width}; quantisation_ranges "
            f"has {', '.join(known) or 'none'}. Run the evaluation pipeline from 'fit_quantisation'"
        )
        raise DataError(msg)
    own = ranges.header["models"].get(model, {}).get("weight_hash")
    if weight_hash is not None and own is not None and own != weight_hash:
        msg = (
            f"quantisation_ranges are those of other weights than the vectors of '{model}' "
            f"({own} against {weight_hash}). Run the evaluation pipeline again."
        )
        raise ProvenanceError(msg)
    return Quantiser(INT8, ranges[_key(model, width)])


def _key(model: str, width: int) -> str:
    """Name the ranges of a model and width."""
    return f"{model}_{width}"
