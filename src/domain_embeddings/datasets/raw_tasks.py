"""The tasks of a project as one catalog entry."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from kedro.io import AbstractDataset
from kedro.io.core import DatasetError

from domain_embeddings.core.tasks.records import RawTasks
from domain_embeddings.core.tasks.spec import parse_specs


class RawTasksDataset(AbstractDataset[None, RawTasks]):
    """List the labelled sets a model is adapted to; docs/data_formats.md describes an entry.

    Args:
        tasks: One mapping per task.
        root: Folder that relative paths start from; by default the current one, which Kedro makes
            the project.
        metadata: Ignored by Kedro, read by Kedro-Viz.

    Raises:
        ParameterError: Listing every problem of every task. No file is read.
    """

    def __init__(
        self,
        tasks: list[dict[str, Any]],
        root: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Validate the tasks; no file is read."""
        self._specs = tuple(parse_specs(tasks))
        self._root = root
        self.metadata = metadata

    def load(self) -> RawTasks:
        """Return the specs with a reader; files are opened when rows are asked for."""
        return RawTasks(self._specs, Path(self._root) if self._root else Path.cwd())

    def save(self, data: None) -> NoReturn:
        """Refuse: raw data is never written."""
        del data
        msg = "raw_tasks is read only"
        raise DatasetError(msg)

    def _exists(self) -> bool:
        return True

    def _describe(self) -> dict[str, Any]:
        types = Counter(spec.type for spec in self._specs)
        return {
            "tasks": ", ".join(spec.name for spec in self._specs),
            "types": ", ".join(f"{count} {kind}" for kind, count in types.items()),
        }
