"""A faiss index of an embedded corpus, and how to search it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from domain_embeddings.core.encoders.quantisation import BINARY, Quantiser, unsigned
from domain_embeddings.core.evaluation.search import add_codes, empty_index
from domain_embeddings.core.export.corpus import read_blocks
from domain_embeddings.core.export.folders import quantiser_of, read_settings, write_settings

INDEX_FILE = "index.faiss"
IDS_FILE = "ids.parquet"


def write_index(source: Path, folder: Path) -> dict[str, Any]:
    """Build an exact ('flat') index of the stored codes.

    The codes of the Parquet file are taken over as they are: nothing is quantised a second time,
    and the int8 index restores vectors from our stored ranges. The index is in memory while it is
    built, as it is while it is searched.

    Args:
        source: Folder of one width of an embedded corpus.
        folder: Where to write; exists.

    Returns:
        ``kind``, ``vectors``, ``bytes_per_vector``.
    """
    import faiss

    settings = read_settings(source)
    index = empty_index(settings["width"], quantiser_of(settings, settings["precision"]))
    names = pa.schema([("id", pa.string())])
    with (
        tqdm(total=settings["documents"], desc=f"index {settings['width']}", unit="text") as bar,
        pq.ParquetWriter(folder / IDS_FILE, names) as ids,
    ):
        for block, codes in read_blocks(source):
            add_codes(index, codes, settings["precision"])
            ids.write_table(pa.table({"id": block}, schema=names))
            bar.update(len(block))
    write = faiss.write_index_binary if settings["precision"] == BINARY else faiss.write_index
    write(index, str(folder / INDEX_FILE))
    write_settings(folder, settings)
    return {
        "kind": type(index).__name__,
        "vectors": int(index.ntotal),
        "bytes_per_vector": int(index.code_size),
    }


class VectorIndex:
    """An exported index, searched by unit vectors of its width.

    Args:
        folder: A folder that `write_index` has filled.
    """

    def __init__(self, folder: Path) -> None:
        """Read index, ids and settings."""
        import faiss

        self.settings = read_settings(folder)
        self._binary = self.settings["precision"] == BINARY
        read = faiss.read_index_binary if self._binary else faiss.read_index
        self._index = read(str(folder / INDEX_FILE))
        self._ids = pq.read_table(folder / IDS_FILE).column("id").to_numpy()

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest documents of each query.

        Args:
            queries: Unit vectors of shape (n, width), float32; never quantised but for binary.
            k: How many documents; at most as many as there are.

        Returns:
            Ids and similarities, both of shape (n, k), nearest first. The similarity is the dot
            product with the restored vector, for binary 1 - 2 hamming / width.
        """
        k = min(k, len(self._ids))
        if self._binary:
            codes = unsigned(Quantiser(BINARY).encode(queries))
            distances, rows = self._index.search(np.ascontiguousarray(codes), k)
            return self._ids[rows], 1 - 2 * distances / self.settings["width"]
        scores, rows = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        return self._ids[rows], scores
