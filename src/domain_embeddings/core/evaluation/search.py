"""Exact search as an index does it, and rescoring of a shortlist.

The indexes hold the codes of ``core.encoders.quantisation``: what is found is what is scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.quantisation import BINARY, FLOAT32, Quantiser, unsigned

INDEXES = {FLOAT32: "IndexFlatIP", "int8": "IndexScalarQuantizer", BINARY: "IndexBinaryFlat"}


class FlatIndex:
    """All vectors compared with each query.

    Args:
        vectors: Full-width vectors of the corpus, shape (n, d), float32.
        width: Prefix width m.
        quantiser: What the index stores; queries go through it as well.
    """

    def __init__(self, vectors: np.ndarray, width: int, quantiser: Quantiser) -> None:
        """Build the index."""
        self.width = width
        self.quantiser = quantiser
        self._index = _build(prefix(vectors, width), quantiser)

    def prepare(self, queries: np.ndarray) -> np.ndarray:
        """Cut and quantise full-width queries (q, d) into what `search` takes."""
        cut = prefix(queries, self.width)
        if self.quantiser.precision == BINARY:
            return unsigned(self.quantiser.encode(cut))
        return np.ascontiguousarray(self.quantiser.restore(cut), dtype=np.float32)

    def search(self, prepared: Any, k: int) -> np.ndarray:
        """Return the rows of the k most similar vectors of each query, best first: (q, k)."""
        return np.asarray(self._index.search(prepared, k)[1])


class Shortlist:
    """Candidates found with small vectors, then ranked by the full ones in float32.

    Args:
        small: Index that finds the candidates.
        vectors: Full-width vectors of the corpus, shape (n, d), float32, of unit norm.
        candidates: How many are rescored.
    """

    def __init__(self, small: FlatIndex, vectors: np.ndarray, candidates: int) -> None:
        """Keep both."""
        self.small = small
        self.vectors = vectors
        self.candidates = min(candidates, len(vectors))

    def prepare(self, queries: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pair what the index takes with the full query."""
        small = self.small.prepare(queries)
        return [(small[row : row + 1], queries[row]) for row in range(len(queries))]

    def search(self, prepared: Any, k: int) -> np.ndarray:
        """Return the rows of the k most similar candidates of each query, best first: (q, k)."""
        found = []
        for small, query in prepared:
            rows = self.small.search(small, self.candidates)[0]
            best = np.argsort(-(self.vectors[rows] @ query), kind="stable")[:k]
            found.append(rows[best])
        return np.array(found)


def _build(cut: np.ndarray, quantiser: Quantiser) -> Any:
    """Fill a faiss index with the codes of prefixes."""
    index = empty_index(cut.shape[1], quantiser)
    add_codes(index, quantiser.encode(cut), quantiser.precision)
    return index


def empty_index(width: int, quantiser: Quantiser) -> Any:
    """Return a flat faiss index of the codes of a quantiser that holds none yet.

    Args:
        width: Number of coordinates m.
        quantiser: What the codes are made with; an int8 index restores vectors from its ranges.
    """
    import faiss

    if quantiser.precision == FLOAT32:
        return faiss.IndexFlatIP(width)
    if quantiser.precision == BINARY:
        # Whole bytes; the bits that fill the last one are the same in all vectors.
        return faiss.IndexBinaryFlat(8 * -(-width // 8))
    kind = faiss.ScalarQuantizer.QT_8bit
    index: Any = faiss.IndexScalarQuantizer(width, kind, faiss.METRIC_INNER_PRODUCT)
    # The stored ranges in place of what faiss would take from the corpus.
    low, high = np.asarray(quantiser.ranges, dtype=np.float32)
    faiss.copy_array_to_vector(np.concatenate([low, high - low]), index.sq.trained)
    index.is_trained = True
    return index


def add_codes(index: Any, codes: np.ndarray, precision: str) -> None:
    """Append codes to an index as they are: nothing is quantised a second time.

    Args:
        index: The result of `empty_index`.
        codes: What `Quantiser.encode` returned.
        precision: That of the quantiser.
    """
    codes = np.ascontiguousarray(codes)
    if precision == FLOAT32:
        index.add(codes)
    elif precision == BINARY:
        index.add(unsigned(codes))
    else:
        index.add_sa_codes(unsigned(codes))


@contextmanager
def single_thread() -> Iterator[None]:
    """Let faiss and the linear algebra under it use one thread."""
    import faiss
    from threadpoolctl import threadpool_limits

    before = faiss.omp_get_max_threads()
    # Only now: a controller does not know of libraries that were loaded after it.
    with threadpool_limits(limits=1):
        faiss.omp_set_num_threads(1)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)
