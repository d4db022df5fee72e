"""A Kedro data set for bundles that fit in memory, in one safetensors file."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from kedro.io import AbstractVersionedDataset, DatasetError

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.datasets.local import JSONPreview, OnLocalDisk
from domain_embeddings.datasets.memmap_bundle import check_finite, check_name


class SafetensorsBundleDataset(OnLocalDisk, AbstractVersionedDataset[Bundle, Bundle]):
    """One safetensors file: the arrays, and the header as JSON in the metadata.

    Example:
        ::

            shrinkage:
              type: domain_embeddings.datasets.safetensors_bundle.SafetensorsBundleDataset
              filepath: data/05_model_input/shrinkage.safetensors
              versioned: true
    """

    def load(self) -> Bundle:
        """Read all arrays into memory.

        Returns:
            The bundle.

        Raises:
            DatasetError: If the file is missing, damaged, or not a bundle.
        """
        from safetensors import safe_open

        path = Path(self._get_load_path())
        with safe_open(path, framework="numpy") as file:
            header = _header_of(path, file.metadata())
            arrays = {name: file.get_tensor(name) for name in file.keys()}
        return Bundle(arrays, header)

    def save(self, data: Bundle) -> None:
        """Write the bundle beside its place, then move it there in one step.

        Args:
            data: Arrays in memory and their header.

        Raises:
            DatasetError: If a value is not finite, an array is still being produced, or the header
                is not JSON.
        """
        from safetensors.numpy import save_file

        header = json.dumps(data.header, allow_nan=False)
        arrays = {name: _checked(name, data[name]) for name in data.arrays}
        target = Path(self._get_save_path())
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
        try:
            save_file(arrays, partial, metadata={"header": header})
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def preview(self) -> JSONPreview:
        """Describe the bundle for Kedro-Viz: its header, and the shape and type of each array."""
        bundle = self.load()
        arrays = {
            name: {"shape": list(bundle[name].shape), "dtype": bundle[name].dtype.name}
            for name in bundle.arrays
        }
        return JSONPreview(json.dumps({"header": bundle.header, "arrays": arrays}, indent=2))

    def _exists(self) -> bool:
        return Path(self._get_load_path()).is_file()


def _checked(name: str, array: np.ndarray) -> np.ndarray:
    check_name(name)
    check_finite(name, array, 0)
    return np.ascontiguousarray(array)


def _header_of(path: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    if not metadata or "header" not in metadata:
        msg = f"{path}: a safetensors file without the header of a bundle"
        raise DatasetError(msg)
    header: dict[str, Any] = json.loads(metadata["header"])
    return header
