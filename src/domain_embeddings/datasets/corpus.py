"""A catalog entry that names the texts to embed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedro.io import AbstractDataset, DatasetError

from domain_embeddings.core.errors import DataError, ParameterError


class CorpusDataset(AbstractDataset):
    """A read-only jsonl or parquet file with an id and a text per row, read as a stream.

    Args:
        filepath: The file; None where the documents of the evaluated tasks are meant.
        columns: Names of the columns ``id`` and ``text``, where they are called otherwise.
        metadata: Kept for Kedro-Viz.

    Example:
        ::

            export_corpus:
              type: domain_embeddings.datasets.corpus.CorpusDataset
              filepath: data/01_raw/articles.jsonl
              columns: {id: article, text: body}
    """

    def __init__(
        self,
        *,
        filepath: str | None = None,
        columns: Mapping[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        unknown = sorted(set(columns or {}) - {"id", "text"})
        if unknown:
            msg = f"export_corpus.columns: unknown {unknown}; allowed: id, text"
            raise DatasetError(msg)
        self._path = None if filepath is None else Path(filepath)
        self._columns = {"id": "id", "text": "text", **(columns or {})}
        self.metadata = metadata

    def load(self) -> Any:
        """Return a `CorpusFile`, or None where no file is named."""
        from domain_embeddings.core.export.corpus import CorpusFile

        self._exists()
        if self._path is None:
            return None
        return CorpusFile(self._path, self._columns["id"], self._columns["text"])

    def save(self, data: Any) -> None:
        """Refuse: the corpus is an input."""
        msg = "The corpus is read-only"
        raise DatasetError(msg)

    def _exists(self) -> bool:
        """Refuse a file that cannot be read: unlike other entries, no stage would make it."""
        if self._path is None:
            return True
        # Not imported from core, which would load torch before the run is checked.
        if self._path.suffix not in (".jsonl", ".parquet"):
            msg = f"export_corpus.filepath: {self._path}: allowed: a .jsonl or .parquet file"
            raise ParameterError(msg)
        if not self._path.is_file():
            msg = (
                f"export_corpus.filepath: there is no file {self._path} (looked for "
                f"{self._path.resolve()}); allowed: a .jsonl or .parquet file, or null for the "
                "documents of the evaluated tasks"
            )
            raise DataError(msg)
        return True

    def _describe(self) -> dict[str, Any]:
        return {"filepath": self._path, "columns": self._columns}
