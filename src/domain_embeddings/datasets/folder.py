"""Catalog entries that are whole folders of files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from kedro.io import AbstractVersionedDataset

from domain_embeddings.core.export.manifest import MANIFEST, read_manifest, write_manifest
from domain_embeddings.datasets.local import JSONPreview, OnLocalDisk, folder_beside


class FolderDataset(OnLocalDisk, AbstractVersionedDataset[Any, Path]):
    """A versioned folder that a node fills while it is saved, and that loads as its path.

    What is saved is a function: it is given an empty folder beside the final place, fills it, and
    returns what there is to say about the content. So large content is streamed to disk and never
    held in memory. ``manifest.json`` keeps what was said, every file with its size in bytes, and
    the seconds it took; then the folder is renamed, so it is there whole or not at all.

    Example:
        ::

            exported_models:
              type: domain_embeddings.datasets.folder.FolderDataset
              filepath: data/09_export/exported_models
              versioned: true
    """

    def load(self) -> Path:
        """Return the folder.

        Raises:
            DataError: If it was never saved completely.
        """
        path = Path(self._get_load_path())
        read_manifest(path)
        return path

    def save(self, data: Any) -> None:
        """Let ``data`` fill the folder.

        Args:
            data: A function of an empty folder that fills it and returns a JSON-able mapping.
        """
        target = Path(self._get_save_path())
        started = time.monotonic()
        with folder_beside(target) as partial:
            details = data(partial)
            write_manifest(partial, details, time.monotonic() - started)
            partial.rename(target)

    def preview(self) -> JSONPreview:
        """Show the manifest in Kedro-Viz, which asks before there is one, too."""
        if not self.exists():
            return JSONPreview("{}")
        return JSONPreview(json.dumps(read_manifest(Path(self._get_load_path())), indent=2))

    def _exists(self) -> bool:
        return (Path(self._get_load_path()) / MANIFEST).is_file()
