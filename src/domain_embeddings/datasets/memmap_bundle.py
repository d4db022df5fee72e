"""A Kedro data set for bundles that are larger than memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kedro.io import AbstractVersionedDataset, DatasetError

from domain_embeddings.core.bundle import BlockArray, Bundle
from domain_embeddings.datasets.local import JSONPreview, OnLocalDisk, folder_beside

_HEADER = "header.json"
_WRITE_BYTES = 16 * 1024 * 1024


class MemmapBundleDataset(OnLocalDisk, AbstractVersionedDataset[Bundle, Bundle]):
    """A directory with ``header.json`` and one ``<name>.npy`` per array, loaded memory-mapped.

    Arrays are written block by block, so neither saving nor loading needs the whole array in
    memory. The directory appears under its name only when it is complete.

    Example:
        ::

            relation_vectors:
              type: domain_embeddings.datasets.memmap_bundle.MemmapBundleDataset
              filepath: data/04_feature/relation_vectors
              versioned: true
    """

    def load(self) -> Bundle:
        """Open the bundle; its arrays stay on disk until they are read.

        Returns:
            The bundle, its arrays read-only.

        Raises:
            DatasetError: If the directory is incomplete or disagrees with its own header.
        """
        directory = Path(self._get_load_path())
        content = _read_header(directory)
        arrays = {
            name: _open_array(directory, name, described)
            for name, described in content["arrays"].items()
        }
        return Bundle(arrays, content["header"])

    def save(self, data: Bundle) -> None:
        """Write the bundle beside its place, then move it there in one step.

        Args:
            data: Arrays, whole or as blocks, and their header.

        Raises:
            DatasetError: If blocks do not add up to the announced shape, a value is not finite,
                or an array or the header cannot be stored without pickling.
        """
        target = Path(self._get_save_path())
        with folder_beside(target) as partial:
            _write_bundle(partial, data)
            _replace_directory(partial, target)

    def preview(self) -> JSONPreview:
        """Describe the bundle for Kedro-Viz: its header, and the shape and type of each array."""
        content = _read_header(Path(self._get_load_path()))
        return JSONPreview(json.dumps(content, indent=2))

    def _exists(self) -> bool:
        return (Path(self._get_load_path()) / _HEADER).is_file()


def check_name(name: str) -> None:
    """Refuse an array name that could not be a file name, or would leave its directory."""
    if not (name.isascii() and name.isidentifier()):
        msg = f"array name {name!r}: only letters, digits and underscores are allowed"
        raise DatasetError(msg)


def check_finite(name: str, block: np.ndarray, first_row: int) -> None:
    """Refuse a block with a value that is not finite.

    Args:
        name: Name of the array, for the message.
        block: Consecutive rows of the array.
        first_row: Row of the array that ``block`` starts at.

    Raises:
        DatasetError: Naming the array and the first offending row.
    """
    if block.dtype.kind not in "fc" or np.isfinite(block).all():
        return
    rows = np.isfinite(block).reshape(len(block), -1).all(axis=1) if block.ndim else [False]
    row = first_row + int(np.argmin(rows))
    msg = f"array '{name}', row {row}: not finite (NaN, infinite, or too large for {block.dtype})"
    raise DatasetError(msg)


def _write_bundle(directory: Path, data: Bundle) -> None:
    described = {}
    for name, array in data.arrays.items():
        check_name(name)
        blocks = array if isinstance(array, BlockArray) else _as_blocks(np.asarray(array))
        _write_array(directory / f"{name}.npy", name, blocks)
        described[name] = {"shape": list(blocks.shape), "dtype": np.dtype(blocks.dtype).name}
    content = {"header": data.header, "arrays": described}
    text = json.dumps(content, indent=2, allow_nan=False)
    (directory / _HEADER).write_text(text, encoding="utf-8")


def _as_blocks(array: np.ndarray) -> BlockArray:
    """View an array as blocks of some megabytes, so that a memory-mapped one stays on disk."""
    if array.ndim == 0:
        return BlockArray((), array.dtype.name, [array])
    row_bytes = max(1, array[:1].nbytes)
    rows = max(1, _WRITE_BYTES // row_bytes)
    blocks = (array[start : start + rows] for start in range(0, len(array), rows))
    return BlockArray(array.shape, array.dtype.name, blocks)


def _write_array(path: Path, name: str, array: BlockArray) -> None:
    """Stream one array to ``path`` in the .npy format."""
    dtype = np.dtype(array.dtype)
    if dtype.hasobject or dtype.kind not in "biufc":
        msg = f"array '{name}' is of type {dtype}; only numbers and booleans are stored"
        raise DatasetError(msg)
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": array.shape,
    }
    written = 0
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, described)
        for block in _checked_blocks(name, array, dtype):
            # Plain writes, not a writable memory map: mapped pages would count as memory in use.
            file.write(block.tobytes())
            written += len(block) if block.ndim else 1
    announced = array.shape[0] if array.shape else 1
    if written != announced:
        msg = f"array '{name}': {announced} rows were announced, the blocks hold {written}"
        raise DatasetError(msg)


def _checked_blocks(name: str, array: BlockArray, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yield the blocks as ``dtype``, refusing wrong widths and values that are not finite."""
    row = 0
    for given in array.blocks:
        if given.shape[1:] != tuple(array.shape[1:]):
            msg = f"array '{name}', row {row}: rows of shape {given.shape[1:]}, not {array.shape}"
            raise DatasetError(msg)
        with np.errstate(over="ignore"):  # an overflow is reported by the check, with its row
            block = given.astype(dtype, casting="same_kind", copy=False)
        check_finite(name, block, row)
        yield block
        row += len(block) if block.ndim else 1


def _replace_directory(source: Path, target: Path) -> None:
    """Move ``source`` to ``target``, where an earlier bundle may be."""
    if not target.exists():
        source.rename(target)
        return
    # A directory cannot replace another one in one step. Readers that have mapped the old files
    # keep them until they close.
    old = target.with_name(f"{source.name}.old")
    target.rename(old)
    source.rename(target)
    shutil.rmtree(old)


def _read_header(directory: Path) -> dict[str, Any]:
    path = directory / _HEADER
    if not path.is_file():
        msg = f"{path}: no such file; the bundle was never saved completely"
        raise DatasetError(msg)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _open_array(directory: Path, name: str, described: dict[str, Any]) -> np.ndarray:
    """Map one array and compare it with what the header says."""
    check_name(name)
    path = directory / f"{name}.npy"
    # An empty file region cannot be mapped.
    mapped = bool(described["shape"]) and all(described["shape"])
    array: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    found = {"shape": list(array.shape), "dtype": array.dtype.name}
    if found != described:
        msg = f"{path}: holds {found}, its header announces {described}"
        raise DatasetError(msg)
    return array
