"""Turn the rows of every task into one table of records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks import builtin
from domain_embeddings.core.tasks.labels import join_labels
from domain_embeddings.core.tasks.normalise import (
    comparison_key,
    pair_key,
    stable_fraction,
    stable_hash,
    text_identifier,
)
from domain_embeddings.core.tasks.readers import Row, Table, read_hub, read_table, value_of
from domain_embeddings.core.tasks.spec import (
    DOCUMENT_TYPES,
    LABEL_TYPES,
    PAIR_TYPES,
    SPLITS,
    BuiltinSource,
    FilesSource,
    HubSource,
    SplitRule,
    TaskSpec,
    as_list,
    source_splits,
)

RECORD_COLUMNS: dict[str, str] = {
    "task": "str",
    "split": "str",
    "row": "int64",
    "origin": "str",
    "text": "str",
    "text2": "str",
    "label": "str",
    "score": "float64",
    "text_id": "str",
    "text2_id": "str",
}
PAIR_LABELS = ("0", "1")
HELD_OUT = ("dev", "test")


@dataclass(frozen=True)
class Record:
    """One row of a task; see docs/data_formats.md for what the fields mean per type."""

    split: str
    origin: str
    text: str | None = None
    text2: str | None = None
    label: str | None = None
    score: float = math.nan
    text_id: str | None = None
    text2_id: str | None = None


@dataclass
class SplitCount:
    """What was read of one split: rows per file, rows kept, rows dropped by reason."""

    files: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    distractors: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the counts in JSON form."""
        return {
            "files": dict(self.files),
            "read": sum(self.files.values()),
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "distractors": self.distractors,
        }


@dataclass(frozen=True)
class RawTasks:
    """The tasks of the catalog; their rows are read when asked for.

    Args:
        specs: Validated specs.
        root: The project folder, which relative paths start from.
    """

    specs: tuple[TaskSpec, ...]
    root: Path

    def read(self) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Read every task.

        Returns:
            The records of all tasks, and the ingestion report.

        Raises:
            DataError: A file is missing or malformed; the message names task, file and line.
        """
        frames, report = [], {}
        collections: dict[str, builtin.Collection] = {}
        for spec in self.specs:
            name = spec.source.name if isinstance(spec.source, BuiltinSource) else ""
            if name and name not in collections:
                collections[name] = builtin.collect(name)
            try:
                records, counts = _read_task(spec, self.root, collections.get(name))
            except DataError as error:
                msg = f"Task '{spec.name}': {error}"
                raise DataError(msg) from error
            frames.append(records_frame(spec.name, records))
            report[spec.name] = {
                "type": spec.type,
                "source": spec.source.kind,
                "splits": {split: counts[split].as_dict() for split in SPLITS if split in counts},
            }
        whole: dict[str, Any] = {"tasks": report}
        whole |= {name: collection.report() for name, collection in collections.items()}
        return concat_records(frames), whole


def records_frame(task: str, records: Iterable[Record]) -> pd.DataFrame:
    """Return the records of one task as a table, numbered from 0 within each split."""
    numbers: Counter[str] = Counter()
    rows = []
    for record in records:
        rows.append(
            (
                task,
                record.split,
                numbers[record.split],
                record.origin,
                record.text,
                record.text2,
                record.label,
                record.score,
                record.text_id,
                record.text2_id,
            )
        )
        numbers[record.split] += 1
    return pd.DataFrame(rows, columns=list(RECORD_COLUMNS)).astype(RECORD_COLUMNS)


def concat_records(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return several record tables as one, with the columns and types of the contract."""
    frames = list(frames)
    if not frames:
        return records_frame("", [])
    return pd.concat(frames, ignore_index=True).astype(RECORD_COLUMNS)


def identity_key(task_type: str, text: str, text2: str | None) -> str:
    """Return the key by which two rows of a type ask the same thing.

    Single texts and queries are compared by themselves, pairs as a whole and in either order. All
    summaries of a text are one question.
    """
    if task_type in PAIR_TYPES and task_type != "summarization" and text2 is not None:
        return pair_key(text, text2)
    return comparison_key(text)


def _read_task(
    spec: TaskSpec, root: Path, collection: builtin.Collection | None
) -> tuple[list[Record], dict[str, SplitCount]]:
    """Read, check and sample the rows of one task."""
    counts: dict[str, SplitCount] = {split: SplitCount() for split in source_splits(spec.source)}
    source = spec.source
    corpus: list[Record] = []
    if isinstance(source, FilesSource) and source.relevance is not None:
        parts = _file_parts(source, root)
        records, corpus = _join_parts(spec, parts, counts)
    elif isinstance(source, HubSource) and source.queries_config is not None:
        parts = _hub_parts(source, root)
        records, corpus = _join_parts(spec, parts, counts)
    else:
        records = list(_plain_records(spec, _tables(spec, root, collection), counts))
        corpus = _plain_corpus(spec, root, collection)
        _require_one_text_per_id([*records, *corpus])
    kept = list(_limit(spec, records, counts))
    distractors = list(_distractors(kept, corpus, counts))
    for record in kept:
        counts[record.split].kept += 1
    order: list[str] = list(SPLITS)
    return sorted([*kept, *distractors], key=lambda record: order.index(record.split)), counts


# --------------------------------------------------------------------------------- plain rows


def _tables(
    spec: TaskSpec, root: Path, collection: builtin.Collection | None
) -> Iterator[tuple[str | None, Table]]:
    """Yield every table of a task with its split, or None where a rule splits the rows."""
    source = spec.source
    if isinstance(source, FilesSource):
        if source.all is not None:
            yield from ((None, read_table(path, root)) for path in as_list(source.all))
        for split in SPLITS:
            for path in as_list(getattr(source, split) or []):
                yield split, read_table(path, root)
    elif isinstance(source, HubSource):
        for name in source_splits(source):
            yield name, read_hub(source, source.config, source.split_name(name), root)
    elif collection is not None:
        for split in SPLITS:
            yield split, Table(source.where(split), list(collection.rows(source.task, split)))


def _plain_records(
    spec: TaskSpec, tables: Iterable[tuple[str | None, Table]], counts: dict[str, SplitCount]
) -> Iterator[Record]:
    """Yield the usable records of all tables and count the others."""
    rule = isinstance(spec.source, FilesSource) and (spec.source.split or SplitRule())
    for given, table in tables:
        for row in table.rows:
            made = _record(spec, row)
            split = given or _split_of(spec, made, row, rule or SplitRule())
            count = counts[split]
            count.files[table.name] += 1
            reason = _unusable(spec, made)
            if reason:
                count.dropped[reason] += 1
                continue
            made = replace(made, split=split)
            yield made
            yield from _negatives(spec, row, made)


def _record(spec: TaskSpec, row: Row) -> Record:
    """Return the record of one row, its split still open."""
    text_role, text2_role = _text_roles(spec.type)
    text = _text(row, spec.column(text_role))
    text2 = _text(row, spec.column(text2_role)) if text2_role else None
    record = Record("", row[0], text, text2, _label(spec, row), _score(spec, row))
    return _with_ids(spec, row, record) if spec.type in DOCUMENT_TYPES else record


def _text_roles(task_type: str) -> tuple[str, str | None]:
    """Return the roles of the two text fields of a type."""
    if task_type in DOCUMENT_TYPES:
        return "query", "document"
    if task_type == "summarization":
        return "text", "summary"
    return ("text1", "text2") if task_type in PAIR_TYPES else ("text", None)


def _with_ids(spec: TaskSpec, row: Row, record: Record) -> Record:
    """Add query and document identifiers: given ones, else such that equal texts share one."""
    return replace(
        record,
        text_id=_identifier(row, spec.columns.get("query_id"), record.text, "q"),
        text2_id=_identifier(row, spec.columns.get("document_id"), record.text2, "d"),
    )


def _identifier(row: Row, column: str | None, text: str | None, prefix: str) -> str | None:
    if column is not None:
        return _required_text(row, column)
    return None if text is None else text_identifier(text, prefix)


def _text(row: Row, column: str | None) -> str | None:
    """Return a text value; numbers become text, None stays None."""
    value = value_of(row, str(column))
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, list | dict | tuple | bytes):
        msg = f"{row[0]}: column '{column}' must be text, got {type(value).__name__}"
        raise DataError(msg)
    return value if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> str:
    """Return a number as text, the same whatever file format it came from."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _required_text(row: Row, column: str) -> str:
    value = _text(row, column)
    if value is None or not value.strip():
        msg = f"{row[0]}: column '{column}' is empty"
        raise DataError(msg)
    return value.strip()


def _label(spec: TaskSpec, row: Row) -> str | None:
    """Return the label of a row; labels of pairs must be 0 or 1."""
    if spec.type not in (*LABEL_TYPES, "pair_classification"):
        return None
    column = spec.column("label")
    if spec.type == "multilabel":
        return _labels(row, str(column), spec.separator)
    label = _text(row, column)
    label = label.strip() if label else label
    if spec.type != "pair_classification":
        return label or None
    label = {"true": "1", "false": "0", "1.0": "1", "0.0": "0"}.get(str(label).lower(), label)
    if label not in PAIR_LABELS:
        msg = f"{row[0]}: column '{column}' must be 0 or 1, got {label!r}"
        raise DataError(msg)
    return label


def _labels(row: Row, column: str, separator: str) -> str | None:
    """Return the set of labels of a row; an empty list says that none applies, an empty cell not.

    Raises:
        DataError: Something in a list of labels is not a label.
    """
    value = value_of(row, column)
    if not isinstance(value, list):
        text = _text(row, column)
        parts = [part.strip() for part in text.split(separator)] if text else []
        named = [part for part in parts if part]
        return join_labels(named) if named else None
    labels = [part.strip() if isinstance(part, str) else part for part in value]
    if not all(_is_label(part) for part in labels):
        msg = f"{row[0]}: column '{column}' must be a list of labels, got {value!r}"
        raise DataError(msg)
    return join_labels(_plain(part) for part in labels)


def _is_label(part: Any) -> bool:
    """Tell a label from a gap and from anything that is no single value."""
    if isinstance(part, float) and math.isnan(part):
        return False
    return isinstance(part, str | int | float) and part != ""


def _score(spec: TaskSpec, row: Row) -> float:
    """Return the score of a row: relevance for retrieval, 1 where no column is named.

    A summary without a score is a reference that the others are compared with.
    """
    column = spec.column("score")
    if column is None or spec.type not in ("sts", "summarization", *DOCUMENT_TYPES):
        return 1.0 if spec.type in DOCUMENT_TYPES else math.nan
    if spec.type == "summarization" and not (_text(row, column) or "").strip():
        return math.nan
    return _number(row, column)


def _number(row: Row, column: str) -> float:
    value = value_of(row, column)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        msg = f"{row[0]}: column '{column}' must be a finite number, got {value!r}"
        raise DataError(msg)
    return number


def _unusable(spec: TaskSpec, record: Record) -> str | None:
    """Return why a row cannot be used, or None."""
    second = _text_roles(spec.type)[1] is not None
    texts = [record.text, record.text2] if second else [record.text]
    if any(text is None or not text.strip() for text in texts):
        return "empty text"
    if spec.type in LABEL_TYPES and record.label is None:
        return "missing label"
    return None


def _negatives(spec: TaskSpec, row: Row, record: Record) -> Iterator[Record]:
    """Yield the hard negatives of a query as rows of relevance 0."""
    column = spec.columns.get("negative")
    if column is None:
        return
    value = value_of(row, column)
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and text.strip():
            yield replace(record, text2=text, score=0.0, text2_id=text_identifier(text, "d"))


def _split_of(spec: TaskSpec, record: Record, row: Row, rule: SplitRule) -> str:
    """Assign a row to a split by the hash of its text or of its group."""
    if rule.by is not None:
        key = _plain(value_of(row, rule.by))
    else:
        key = identity_key(spec.type, record.text or "", record.text2)
    position = stable_fraction(key, "split")
    if position < rule.test:
        return "test"
    return "dev" if position < rule.test + rule.dev else "train"


def _plain_corpus(
    spec: TaskSpec, root: Path, collection: builtin.Collection | None
) -> list[Record]:
    """Return the documents that stand beside the pairs of a retrieval task."""
    source = spec.source
    if isinstance(source, FilesSource) and source.corpus is not None:
        tables = [read_table(path, root) for path in as_list(source.corpus)]
    elif isinstance(source, HubSource) and source.corpus_config is not None:
        tables = [read_hub(source, source.corpus_config, _part_split(source), root)]
    elif source.kind == "builtin" and collection is not None:
        return [
            Record(split, origin, None, text, text2_id=text_identifier(text, "d"))
            for split in HELD_OUT
            for origin, text in collection.distractors(source.task, split)
        ]
    else:
        return []
    rows = [row for table in tables for row in table.rows]
    # With derived ids a corpus document must share the id of an equal document of a pair.
    given = "document_id" in spec.columns
    documents = _documents(spec, rows).items()
    return [
        Record("", origin, None, text, text2_id=key if given else text_identifier(text, "d"))
        for key, (origin, text) in documents
    ]


def _require_one_text_per_id(records: list[Record]) -> None:
    """Refuse an id of a query or of a document that stands for two texts."""
    for kind, sides in (
        ("query", [(r.text_id, r.text, r.origin) for r in records]),
        ("document", [(r.text2_id, r.text2, r.origin) for r in records]),
    ):
        found: dict[str, tuple[str, str]] = {}
        for key, text, origin in sides:
            if key is None or text is None:
                continue
            known, place = found.setdefault(key, (text, origin))
            if known.strip() != text.strip():
                msg = f"{origin}: {kind} id '{key}' has another text at {place}"
                raise DataError(msg)


# ----------------------------------------------------------- corpus, queries and relevance


@dataclass(frozen=True)
class _Parts:
    """A retrieval set in three parts."""

    corpus: list[Row]
    queries: list[Row]
    relevance: dict[str, list[Table]]


def _file_parts(source: FilesSource, root: Path) -> _Parts:
    def rows(paths: str | list[str] | None) -> list[Row]:
        return [row for path in as_list(paths or []) for row in read_table(path, root).rows]

    relevance = {
        str(split): [read_table(path, root) for path in as_list(paths)]
        for split, paths in (source.relevance or {}).items()
    }
    return _Parts(rows(source.corpus), rows(source.queries), relevance)


def _part_split(source: HubSource) -> str:
    """Return the split that holds the corpus; by convention it is named like its configuration."""
    return str(source.corpus_config)


def _hub_parts(source: HubSource, root: Path) -> _Parts:
    corpus = read_hub(source, source.corpus_config, _part_split(source), root)
    queries = read_hub(source, source.queries_config, str(source.queries_config), root)
    relevance = {
        str(split): [read_hub(source, source.config, name, root)]
        for split, name in source.splits.items()
    }
    return _Parts(corpus.rows, queries.rows, relevance)


def _join_parts(
    spec: TaskSpec, parts: _Parts, counts: dict[str, SplitCount]
) -> tuple[list[Record], list[Record]]:
    """Return the judged pairs, and the whole corpus."""
    documents = _documents(spec, parts.corpus)
    queries = _by_id(parts.queries, *_columns(spec, "queries_id", "queries_text"))
    query_column, document_column = _columns(spec, "relevance_query", "relevance_document")
    score_column = spec.column("relevance_score") or ""
    records = []
    for split in SPLITS:
        for table in parts.relevance.get(split, []):
            for row in table.rows:
                counts[split].files[table.name] += 1
                query_id = _required_text(row, query_column)
                document_id = _required_text(row, document_column)
                _, query = _look_up(row, queries, query_id, "query")
                _, document = _look_up(row, documents, document_id, "document")
                if not query.strip() or not document.strip():
                    counts[split].dropped["empty text"] += 1
                    continue
                score = _number(row, score_column) if score_column in row[1] else 1.0
                records.append(
                    Record(split, row[0], query, document, None, score, query_id, document_id)
                )
    corpus = [
        Record("", origin, None, text, text2_id=key)
        for key, (origin, text) in documents.items()
        if text.strip()
    ]
    return records, corpus


def _columns(spec: TaskSpec, *roles: str) -> tuple[str, ...]:
    return tuple(str(spec.column(role)) for role in roles)


def _documents(spec: TaskSpec, rows: list[Row]) -> dict[str, tuple[str, str]]:
    """Return origin and text of every document by id, the title in front of the text."""
    id_column, text_column, title_column = _columns(
        spec, "corpus_id", "corpus_text", "corpus_title"
    )
    return _by_id(rows, id_column, text_column, title_column)


def _by_id(
    rows: list[Row], id_column: str, text_column: str, title_column: str | None = None
) -> dict[str, tuple[str, str]]:
    """Return origin and text of every row by id; one id must not have two texts."""
    found: dict[str, tuple[str, str]] = {}
    for row in rows:
        text = _text(row, text_column) or ""
        key = _row_id(row, id_column, text)
        if title_column is not None and title_column in row[1]:
            text = f"{_text(row, title_column) or ''} {text}".strip()
        if key in found and found[key][1] != text:
            msg = f"{row[0]}: id '{key}' has another text at {found[key][0]}"
            raise DataError(msg)
        found.setdefault(key, (row[0], text))
    return found


def _row_id(row: Row, id_column: str, text: str) -> str:
    """Return the id of a row: the named column, 'id' in its absence, else one of the text."""
    for column in (id_column, "id"):
        if column in row[1]:
            return _required_text(row, column)
    return text_identifier(text, "d")


def _look_up(
    row: Row, found: Mapping[str, tuple[str, str]], key: str, kind: str
) -> tuple[str, str]:
    if key not in found:
        msg = f"{row[0]}: {kind} id '{key}' is not among the {len(found)} of its file"
        raise DataError(msg)
    return found[key]


# ------------------------------------------------------------------- sampling and distractors


def _limit(
    spec: TaskSpec, records: list[Record], counts: dict[str, SplitCount]
) -> Iterator[Record]:
    """Yield at most ``max_rows`` rows of each split (for retrieval: rows of as many queries).

    The rows with the smallest hash of their text are kept, in their order: the choice does not
    depend on the order of the file, which is often sorted by label.
    """
    dropped: set[int] = set()
    for split in counts:
        limit = spec.row_limit(split)
        if limit is not None:
            places = [number for number, record in enumerate(records) if record.split == split]
            dropped.update(_beyond(spec, records, places, limit))
    for number, record in enumerate(records):
        if number in dropped:
            counts[record.split].dropped["max_rows"] += 1
        else:
            yield record


def _beyond(spec: TaskSpec, records: list[Record], places: list[int], limit: int) -> Iterator[int]:
    """Yield the places of the rows (all rows of a query or summarized text) beyond a limit."""
    whole_queries = spec.type in (*DOCUMENT_TYPES, "summarization")
    keys = {}
    for number in places:
        record = records[number]
        text = record.text or ""
        shown = text if whole_queries else f"{text}\x1f{record.text2 or ''}"
        keys[number] = (stable_hash(shown), shown if whole_queries else str(number))
    kept = set(sorted(set(keys.values()))[:limit])
    yield from (number for number in places if keys[number] not in kept)


def _distractors(
    records: list[Record], corpus: list[Record], counts: dict[str, SplitCount]
) -> Iterator[Record]:
    """Yield the corpus documents that no row of a held-out split mentions."""
    for split in HELD_OUT:
        if split not in counts:
            continue
        mentioned = {record.text2_id for record in records if record.split == split}
        for record in corpus:
            if record.split in ("", split) and record.text2_id not in mentioned:
                mentioned.add(record.text2_id)
                counts[split].distractors += 1
                yield replace(record, split=split)
