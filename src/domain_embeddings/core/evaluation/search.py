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
    import faiss

    width = cut.shape[1]
    codes = quantiser.encode(cut)
    index: Any
    if quantiser.precision == FLOAT32:
        index = faiss.IndexFlatIP(width)
        index.add(np.ascontiguousarray(codes))
    elif quantiser.precision == BINARY:
        index = faiss.IndexBinaryFlat(8 * codes.shape[1])
        index.add(unsigned(codes))
    else:
        kind = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexScalarQuantizer(width, kind, faiss.METRIC_INNER_PRODUCT)
        # The stored ranges in place of what faiss would take from the corpus.
        low, high = np.asarray(quantiser.ranges, dtype=np.float32)
        faiss.copy_array_to_vector(np.concatenate([low, high - low]), index.sq.trained)
        index.is_trained = True
        index.add_sa_codes(unsigned(codes))
    return index


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
