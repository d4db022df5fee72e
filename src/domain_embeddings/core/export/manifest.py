"""What an exported folder says about its own content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from domain_embeddings.core.errors import DataError

MANIFEST = "manifest.json"


def write_manifest(folder: Path, details: Mapping[str, Any], seconds: float) -> None:
    """Note every file with its size.

    Args:
        folder: A folder whose files are all written.
        details: What there is to say about them.
        seconds: How long writing them took.
    """
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = {
        "details": dict(details),
        "bytes": sum(files.values()),
        "seconds": round(seconds, 3),
        "files": files,
    }
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return ``details``, ``bytes``, ``seconds`` and ``files`` (bytes by name) of a folder.

    Raises:
        DataError: If the folder was never written completely.
    """
    path = folder / MANIFEST
    if not path.is_file():
        msg = f"{path}: no such file; the folder was never saved completely"
        raise DataError(msg)
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
