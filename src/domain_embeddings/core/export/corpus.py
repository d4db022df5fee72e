"""Vectors of a corpus, streamed from texts to Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from domain_embeddings.core.encoders.batching import count_truncated, encode
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.prompts import prompt_for
from domain_embeddings.core.encoders.quantisation import Quantiser
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.export.folders import folder_name, quantiser_of, write_settings
from domain_embeddings.core.tasks.readers import json_object

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

VECTORS_FILE = "vectors.parquet"
FORMATS = (".jsonl", ".parquet")
BLOCK_ROWS = 1_024
# Whose second side is a collection that queries are answered from.
_SEARCHED = ("retrieval", "reranking")


class Document(NamedTuple):
    """One text of a corpus.

    Args:
        id: Its name, unique in the corpus.
        text: What is encoded, prompt included.
        empty: Whether there is nothing but the prompt.
        origin: Where it came from, for messages.
    """

    id: str
    text: str
    empty: bool
    origin: str


@dataclass(frozen=True)
class CorpusFile:
    """A corpus in a file that is read as a stream.

    Args:
        path: jsonl or parquet.
        id_column: Column of the ids.
        text_column: Column of the texts.
    """

    path: Path
    id_column: str = "id"
    text_column: str = "text"

    def documents(self, prompt: str) -> Iterator[Document]:
        """Yield the documents in file order.

        Args:
            prompt: Put in front of every text.

        Raises:
            DataError: Naming the file and line that cannot be read.
        """
        rows = self._jsonl() if self.path.suffix == ".jsonl" else self._parquet()
        for origin, name, text in rows:
            if name is None or str(name) == "":
                msg = f"{origin}: no value in column '{self.id_column}'"
                raise DataError(msg)
            content = "" if text is None else str(text)
            yield Document(str(name), prompt + content, not content.strip(), origin)

    def _jsonl(self) -> Iterator[tuple[str, Any, Any]]:
        # Lines as bytes: a reader of text decodes ahead, and could not say which line is broken.
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                origin = f"{self.path}:{number}"
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError:
                    msg = f"{origin}: not UTF-8; save the file as UTF-8"
                    raise DataError(msg) from None
                if not text.strip():
                    continue
                values = json_object(text, origin)
                self._require_columns(origin, values)
                yield origin, values[self.id_column], values[self.text_column]

    def _parquet(self) -> Iterator[tuple[str, Any, Any]]:
        try:
            file = pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            msg = f"{self.path}: not a readable parquet file: {error}"
            raise DataError(msg) from None
        self._require_columns(str(self.path), file.schema_arrow.names)
        columns = [self.id_column, self.text_column]
        number = 0
        for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=columns):
            names, texts = (batch.column(name).to_pylist() for name in columns)
            for name, text in zip(names, texts, strict=True):
                number += 1
                yield f"{self.path}:{number}", name, text

    def _require_columns(self, origin: str, found: Iterable[str]) -> None:
        known = list(found)
        for column in (self.id_column, self.text_column):
            if column not in known:
                msg = f"{origin}: no column '{column}'; available: {', '.join(known)}"
                raise DataError(msg)


def task_documents(
    records: pd.DataFrame,
    specs: Sequence[Mapping[str, Any]],
    model_prompts: Mapping[str, str | None],
) -> Iterator[Document]:
    """Yield what the evaluated tasks are searched in; all their texts, if none is a search.

    Args:
        records: The entry ``evaluation_tasks``.
        specs: Task specifications.
        model_prompts: Prompts saved with the model, by name.

    Yields:
        Distinct documents, named ``<task>/<id>``.
    """
    searched = [spec for spec in specs if spec["type"] in _SEARCHED]
    side = ("text2", "text2_id", "positive") if searched else ("text", "text_id", "anchor")
    text_column, id_column, role = side
    for spec in searched or specs:
        rows = records[(records["task"] == spec["name"]) & records[text_column].notna()]
        rows = rows.drop_duplicates(id_column if rows[id_column].notna().all() else text_column)
        prompt = prompt_for(spec, role, model_prompts)  # type: ignore[arg-type]
        for row in rows.itertuples():
            text = str(getattr(row, text_column)).strip()
            name = getattr(row, id_column)
            shown = row.Index if pd.isna(name) else name
            yield Document(f"{spec['name']}/{shown}", prompt + text, not text, str(row.origin))


def document_prompt(model_prompts: Mapping[str, str | None]) -> str:
    """Return the prompt that the model puts in front of documents."""
    return prompt_for({"type": "retrieval", "prompts": None}, "positive", model_prompts)


def write_vectors(  # noqa: PLR0913 - where to, of what, how coarse, in which portions
    root: Path,
    model: SentenceTransformer,
    settings: Sequence[Mapping[str, Any]],
    documents: Iterable[Document],
    *,
    precision: str,
    batch_tokens: int,
    block_rows: int = BLOCK_ROWS,
) -> dict[str, Any]:
    """Encode every document once and write its vector at every shipped width.

    Memory does not grow with the corpus, except for the ids, which have to be unique.

    Args:
        root: An empty folder.
        model: The widest of the shipped models.
        settings: Settings of the shipped folders.
        documents: The corpus, consumed once.
        precision: float32, int8 or binary.
        batch_tokens: Largest padded batch in tokens.
        block_rows: Documents per block.

    Returns:
        ``documents``, ``dropped`` by reason, ``truncated``, ``precision``.

    Raises:
        DataError: If an id is there twice or nothing is left to encode.
    """
    tables = [_Table(root, each, precision) for each in settings]
    counts = Counter({"documents": 0, "truncated": 0, "empty": 0})
    stream = iter(_unique(documents))
    try:
        with tqdm(desc="embedding corpus", unit="text") as bar:
            while block := list(islice(stream, block_rows)):
                kept = [document for document in block if not document.empty]
                counts["empty"] += len(block) - len(kept)
                counts["documents"] += len(kept)
                if kept:
                    texts = [document.text for document in kept]
                    counts["truncated"] += count_truncated(model, texts)
                    vectors = encode(model, texts, batch_tokens=batch_tokens, show_progress=False)
                    for table in tables:
                        table.append([document.id for document in kept], vectors)
                bar.update(len(block))
    finally:
        for table in tables:
            table.close(counts["documents"])
    if not counts["documents"]:
        msg = f"export_corpus: no text to embed ({counts['empty']} are empty)"
        raise DataError(msg)
    return {
        "documents": counts["documents"],
        "dropped": {"empty text": counts["empty"]},
        "truncated": counts["truncated"],
        "precision": precision,
    }


def _unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Refuse an id that was there before."""
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            msg = f"{document.origin}: the id '{document.id}' is there a second time"
            raise DataError(msg)
        seen.add(document.id)
        yield document


class _Table:
    """The Parquet file of one width."""

    def __init__(self, root: Path, settings: Mapping[str, Any], precision: str) -> None:
        self.settings = {**settings, "precision": precision}
        self.folder = root / folder_name(settings["width"])
        self.folder.mkdir()
        self.quantiser: Quantiser = quantiser_of(settings, precision)
        self._writer: pq.ParquetWriter | None = None

    def append(self, ids: Sequence[str], vectors: np.ndarray) -> None:
        """Write one block; ``vectors`` are those of the widest model."""
        codes = self.quantiser.encode(prefix(vectors, self.settings["width"]))
        flat = pa.array(np.ascontiguousarray(codes).reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, codes.shape[1])
        table = pa.table({"id": pa.array(ids, pa.string()), "vector": lists})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.folder / VECTORS_FILE, table.schema)
        self._writer.write_table(table)

    def close(self, documents: int) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
        write_settings(self.folder, {**self.settings, "documents": documents})


def read_blocks(folder: Path, rows: int = BLOCK_ROWS) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yield ids and codes of an embedded corpus in blocks.

    Args:
        folder: Folder of one width.
        rows: Documents per block.

    Yields:
        Ids, and codes as the quantiser gave them: shape (n, width), or (n, bytes) for binary.
    """
    file = pq.ParquetFile(folder / VECTORS_FILE)
    for batch in file.iter_batches(batch_size=rows):
        vectors = batch.column("vector")
        width = vectors.type.list_size
        yield batch.column("id").to_pylist(), vectors.flatten().to_numpy().reshape(-1, width)
