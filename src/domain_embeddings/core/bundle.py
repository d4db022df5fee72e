"""Arrays that travel between stages together with a header that says where they come from."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from domain_embeddings.core.errors import ProvenanceError


@dataclass(frozen=True)
class BlockArray:
    """An array that is produced block by block, so that it never has to fit in memory.

    Args:
        shape: Final shape; the blocks concatenate to it along the first axis.
        dtype: NumPy dtype name on disk.
        blocks: Consecutive blocks, each of shape (rows, *shape[1:]); consumed once.
    """

    shape: tuple[int, ...]
    dtype: str
    blocks: Iterable[np.ndarray]


@dataclass(frozen=True)
class Bundle:
    """Named arrays and their provenance.

    Args:
        arrays: Arrays by name; after loading from disk, memory-mapped where the data set says so.
        header: JSON-serialisable provenance and settings.
    """

    arrays: Mapping[str, np.ndarray | BlockArray]
    header: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the array called ``name``, in memory or memory-mapped."""
        array = self.arrays[name]
        if isinstance(array, BlockArray):
            msg = f"'{name}' is still being produced; save and load it before reading it"
            raise TypeError(msg)
        return array

    def row_blocks(self, name: str, rows: int) -> Iterator[np.ndarray]:
        """Yield ``name`` in consecutive blocks of at most ``rows`` rows.

        Pages of a memory-mapped array are given back after each block, so that a pass over an array
        larger than memory does not count as memory in use.
        """
        array = self[name]
        for start in range(0, len(array), rows):
            yield array[start : start + rows]
            give_back_pages(array)


def give_back_pages(array: np.ndarray) -> None:
    """Unmap what was read of a read-only memory-mapped array; reading it again maps it again.

    Args:
        array: The array or a view of it; nothing happens where it is in memory.
    """
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and not array.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def require_same(header: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Refuse two headers that disagree on one of ``keys``.

    Raises:
        ProvenanceError: Naming every key that differs and both of its values.
    """
    differing = [
        f"{key}: {header.get(key)!r} against {other.get(key)!r}"
        for key in keys
        if header.get(key) != other.get(key)
    ]
    if differing:
        msg = (
            "These artifacts do not belong together ("
            + "; ".join(differing)
            + "). Run the pipeline again from the stage 'relations'."
        )
        raise ProvenanceError(msg)
