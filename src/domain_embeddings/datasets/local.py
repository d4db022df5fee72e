"""What the versioned data sets of this package have in common: a place on a local disk."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NewType

from kedro.io import DatasetError, Version
from kedro.io.core import get_protocol_and_path

# Kedro-Viz chooses how to draw a preview by the name of its type.
JSONPreview = NewType("JSONPreview", str)


class OnLocalDisk:
    """The constructor of a versioned data set that is a file or folder on a local disk.

    It stands before Kedro's ``AbstractVersionedDataset`` in a list of bases and is not derived from
    it: Kedro wraps the constructor of every class that is, and would not find out what an entry
    was configured with behind one that is wrapped already.

    Args:
        filepath: The file or folder (the folder of its versions, where versioned).
        version: Version to load and to save, chosen by Kedro.
        metadata: Ignored here; read by plugins such as Kedro-Viz.

    Raises:
        DatasetError: If ``filepath`` is not on a local disk.
    """

    _filepath: PurePosixPath
    _version: Version | None

    def __init__(
        self,
        *,
        filepath: str,
        version: Version | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(PurePosixPath(_local_path(filepath)), version)
        self.metadata = metadata

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._filepath, "version": self._version}


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Give an empty folder beside its final place, for a content that appears there in one step.

    Args:
        target: The final place; its parent is made.

    Yields:
        The folder, to be filled and then renamed to ``target``; what is not renamed is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _local_path(filepath: str) -> str:
    """Return ``filepath`` without its protocol, refusing anything that is not on a local disk."""
    protocol, path = get_protocol_and_path(filepath)
    if protocol != "file":
        msg = f"{filepath}: must be on a local disk"
        raise DatasetError(msg)
    return path
