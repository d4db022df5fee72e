"""Records of runs: what each `kedro run` was asked, read and made, in one small file per run.

They need no tracking server, and let later commands find results again (`kedro compare`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import domain_embeddings

logger = logging.getLogger(__name__)

# Below the data folder.
FOLDER = "08_reporting/run_records"
# Catalog entries that no run makes.
RAW = ("raw_tasks", "reference_model")


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Args:
        version: Version that it saved its entries under.
        finished: Whether it came to its end.
        parameters: All parameters, nested, defaults included.
        inputs: Digest of what it started from (`inputs_digest`).
        loaded: Version of every entry that it read.
        saved: Version of every entry that it made.
        run_id: Id of its MLflow run; empty if it was not tracked.
        seconds: How long it took.
    """

    version: str
    finished: bool
    parameters: Mapping[str, Any]
    inputs: str
    loaded: Mapping[str, str]
    saved: Mapping[str, str]
    run_id: str = ""
    seconds: float = 0.0

    @property
    def versions(self) -> dict[str, str]:
        """Versions of all entries that it read or made."""
        return {**self.loaded, **self.saved}


def write_record(folder: Path, record: RunRecord) -> None:
    """Write a record in one step; a disk that is full costs a warning, not the run.

    Args:
        folder: Folder of the records; made if it is not there.
        record: What to write.
    """
    partial = folder / f".{uuid.uuid4().hex}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
        os.replace(partial, folder / f"{record.version}.json")
    except OSError as error:
        logger.warning("No record of this run was kept, kedro compare will not find it: %s", error)
        partial.unlink(missing_ok=True)


def read_records(folder: Path) -> list[RunRecord]:
    """Read all records, the newest first; what cannot be read is passed over.

    Args:
        folder: Folder of the records; may be missing.

    Returns:
        The records.
    """
    found = []
    for path in sorted(folder.glob("*.json"), reverse=True):
        try:
            found.append(RunRecord(**json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            logger.warning("%s is not a record of a run: %s", path, error)
    return found


def inputs_digest(catalog: Mapping[str, Any], root: Path) -> str:
    """Identify what a run starts from, without reading it.

    Args:
        catalog: Resolved catalog configuration.
        root: Folder that relative paths start from.

    Returns:
        Digest of the raw entries' configuration; of path, size and time of change of every local
        file that they name; of this package's version; and, where a task is built in (from the
        source of installed packages), of all installed versions.
    """
    raw = {name: catalog.get(name) for name in RAW}
    parts: list[Any] = [domain_embeddings.__version__, raw]
    texts = list(_texts(raw))
    for text in texts:
        parts += _stamps(root, text)
    if '"builtin"' in json.dumps(raw, default=str):
        parts.append(sorted((d.name, d.version) for d in metadata.distributions()))
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested configuration."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _stamps(root: Path, text: str) -> list[tuple[str, int, int]]:
    """Return path, size and time of change of a file, or of all files of a folder, if it is one."""
    try:
        path = root / text
        if path.is_file():
            files = [path]
        # A name without a slash is no folder of data, and "/" is none either.
        elif "/" in text and path.name and path.is_dir():
            files = sorted(path.rglob("*"))
        else:
            return []
        stats = [(file, file.stat()) for file in files if file.is_file()]
    # A text that is no path at all.
    except (OSError, ValueError):
        return []
    return [(os.path.relpath(file, root), stat.st_size, stat.st_mtime_ns) for file, stat in stats]
