"""Exact nearest neighbours at every prefix width, in one pass over documents of any number.

Documents come in blocks, so that neither their vectors nor all similarities are ever in memory. The
inner products of a prefix are those of the next shorter one plus those of the coordinates between
the two, so all widths together take the multiplications of the widest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

# Similarities that are in memory at once, as 4-byte numbers, in two buffers.
_BLOCK_ELEMENTS = 16_000_000


class NestedSearch:
    """The most similar documents of every query, at every width.

    Args:
        queries: Vectors of shape (q, d); they need no length 1.
        widths: Prefix widths, increasing, the last at most d.
        k: Number of documents to keep for every query.
    """

    def __init__(self, queries: np.ndarray, widths: Sequence[int], k: int) -> None:
        """Start without documents."""
        self.widths = list(widths)
        self._queries = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
        self._best = {width: _Best(len(queries), k) for width in self.widths}
        self._seen = 0

    def add(self, documents: np.ndarray) -> None:
        """Compare the next block of documents with every query.

        Args:
            documents: Vectors of shape (b, d); they need no length 1.
        """
        block = torch.from_numpy(np.ascontiguousarray(documents, dtype=np.float32))
        scales = _inverse_lengths(documents, self.widths)
        rows = max(1, _BLOCK_ELEMENTS // max(1, len(block)))
        for start in range(0, len(self._queries), rows):
            own = slice(start, start + rows)
            asked = self._queries[own]
            products = torch.zeros(len(asked), len(block))
            cosines = torch.empty_like(products)
            low = 0
            for width, scale in zip(self.widths, scales, strict=True):
                products.addmm_(asked[:, low:width], block[:, low:width].T)
                torch.mul(products, scale, out=cosines)
                self._best[width].add(cosines, own, self._seen)
                low = width
        self._seen += len(block)

    def result(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best documents so far.

        Args:
            width: One of the widths.

        Returns:
            Cosine similarities and numbers of the documents, each of shape (q, min(k, documents)),
            the most similar first; of equal ones the document that came first.
        """
        values, rows = self._best[width].values, self._best[width].rows
        kept = min(values.shape[1], self._seen)
        [scale] = _inverse_lengths(self._queries.numpy()[:, :width], [width])
        return values[:, :kept] * scale.numpy()[:, None], rows[:, :kept]


class _Best:
    """The k largest values of every query, and where they were found."""

    def __init__(self, queries: int, k: int) -> None:
        self.values = np.full((queries, k), -np.inf, dtype=np.float32)
        self.rows = np.full((queries, k), np.iinfo(np.int64).max, dtype=np.int64)

    def add(self, scores: torch.Tensor, own: slice, first: int) -> None:
        """Take in the scores of some queries (q, b) for documents numbered from ``first``."""
        floor = torch.from_numpy(self.values[own, -1:])
        k = self.values.shape[1]
        if torch.isneginf(floor).any():
            least = torch.topk(scores, min(k, scores.shape[1]), sorted=True).values[:, -1:]
            better = scores >= least
        else:
            # Documents come in order, so one that only equals the last kept one loses to it.
            better = scores > floor
        query, column = torch.nonzero(better, as_tuple=True)
        if not len(query):
            return
        found = scores[query, column].numpy()
        kept = self.values[own]
        queries = np.concatenate([np.repeat(np.arange(len(kept)), k), query.numpy()])
        values = np.concatenate([kept.ravel(), found])
        rows = np.concatenate([self.rows[own].ravel(), column.numpy() + first])
        order = np.lexsort((rows, -values, queries))
        queries = queries[order]
        rank = np.arange(len(order)) - np.searchsorted(queries, queries)
        best = order[rank < k]
        self.values[own] = values[best].reshape(len(kept), k)
        self.rows[own] = rows[best].reshape(len(kept), k)


def pair_similarities(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the cosine similarity of corresponding rows of two arrays (n, m): (n,), float32."""
    width = left.shape[1]
    [[one], [other]] = (_inverse_lengths(side, [width]) for side in (left, right))
    products = (left * right).sum(axis=1, dtype=np.float64)
    return (products * one.numpy() * other.numpy()).astype(np.float32)


def _inverse_lengths(vectors: np.ndarray, widths: Sequence[int]) -> list[torch.Tensor]:
    """Return 1 / length of every prefix, per width of shape (n,); 1 where the length is 0."""
    squares = _running_sums(np.square(vectors, dtype=np.float32), widths)
    inverse = 1 / np.sqrt(np.where(squares > 0, squares, 1))
    return [torch.from_numpy(column.astype(np.float32)) for column in inverse.T]


def _running_sums(values: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Return the sums of the first m columns for every width m, shape (n, widths), float64."""
    starts = [0, *widths[:-1]]
    parts = [
        values[:, low:high].sum(axis=1, dtype=np.float64)
        for low, high in zip(starts, widths, strict=True)
    ]
    return np.cumsum(np.column_stack(parts), axis=1)
