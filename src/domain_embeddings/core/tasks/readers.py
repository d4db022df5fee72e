"""Read rows from files and from hub data sets, each row with the place it came from."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.spec import FILE_FORMATS, HubSource

Row = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Table:
    """Rows of one file or hub split.

    Args:
        name: The path as the user wrote it.
        rows: Origin ('path:line') and the values by column name.
    """

    name: str
    rows: list[Row]


def read_table(path: str, root: Path) -> Table:
    """Read a jsonl, csv, tsv or parquet file.

    Args:
        path: Absolute, or relative to ``root``.
        root: The project folder.

    Returns:
        The rows in file order; the origin of a parquet row counts rows from 1.

    Raises:
        DataError: The file is missing, empty or malformed; the message names file and line.
    """
    resolved = Path(path) if Path(path).is_absolute() else root / path
    if not resolved.is_file():
        msg = f"{path}: no such file (looked for {resolved.resolve()})"
        raise DataError(msg)
    reader = _READERS.get(resolved.suffix.lower())
    if reader is None:
        msg = f"{path}: unknown file format; allowed: {', '.join(FILE_FORMATS)}"
        raise DataError(msg)
    rows = list(reader(path, resolved))
    if not rows:
        msg = f"{path}: the file has no rows"
        raise DataError(msg)
    return Table(path, rows)


def read_hub(source: HubSource, config: str | None, split: str, root: Path) -> Table:
    """Read one split of a hub data set, or of a local folder of the same form.

    Args:
        source: Where the data set is.
        config: Configuration to read.
        split: Split name of the data set.
        root: The project folder.

    Returns:
        The rows in order; the origin of a row counts rows from 1.

    Raises:
        DataError: The data set cannot be loaded, or its revision is not given.
    """
    folder = root / source.path
    local = folder.is_dir()
    if not local and not source.revision:
        msg = (
            f"{source.path}: 'hub.revision' is required (a commit or tag), because this is not a "
            f"local folder (looked for {folder.resolve()})"
        )
        raise DataError(msg)
    import datasets

    place = f"{source.path}[{config}/{split}]" if config else f"{source.path}[{split}]"
    try:
        if local:
            loaded = datasets.load_dataset(str(folder), name=config, split=split)
        else:
            loaded = datasets.load_dataset(
                source.path, name=config, split=split, revision=source.revision
            )
    except Exception as error:
        msg = f"{place}: cannot be loaded: {type(error).__name__}: {error}"
        raise DataError(msg) from error
    rows: list[Row] = [(f"{place}:{number}", row) for number, row in enumerate(loaded, start=1)]
    if not rows:
        msg = f"{place}: the split has no rows"
        raise DataError(msg)
    return Table(place, rows)


def value_of(row: Row, column: str) -> Any:
    """Return the value of a column.

    Raises:
        DataError: The row has no such column; the message lists those it has.
    """
    origin, values = row
    if column not in values:
        msg = f"{origin}: no column '{column}'; available: {', '.join(map(str, values))}"
        raise DataError(msg)
    return values[column]


def json_object(line: str, origin: str) -> dict[str, Any]:
    """Read one line of a jsonl file.

    Args:
        line: The line.
        origin: Where it is, for messages.

    Returns:
        Values by column name.

    Raises:
        DataError: It is no JSON object, or holds half a character, as a text does that was cut in
            the middle of an emoji.
    """
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        msg = f"{origin}: not valid JSON: {error.msg} (column {error.colno})"
        raise DataError(msg) from None
    if not isinstance(values, dict):
        msg = f"{origin}: must be a JSON object, got {type(values).__name__}"
        raise DataError(msg)
    # Only an escape can make one: the file itself is UTF-8.
    if "\\ud" in line.lower():
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(str(error.object)[error.start]):04x}"
            msg = f"{origin}: '{half}' is half a character, whose other half is missing"
            raise DataError(msg) from None
    return values


def _read_text(path: str, resolved: Path) -> str:
    """Return the content of a UTF-8 file, with or without byte order mark."""
    data = resolved.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        msg = f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        raise DataError(msg) from None


def _read_jsonl(path: str, resolved: Path) -> Iterator[Row]:
    """Yield one row per line; blank lines are skipped."""
    # split("\n") and not splitlines(): U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(_read_text(path, resolved).split("\n"), start=1):
        if not line.strip():
            continue
        origin = f"{path}:{number}"
        yield origin, json_object(line, origin)


def _delimited(delimiter: str) -> Callable[[str, Path], Iterator[Row]]:
    """Return the reader of csv or tsv files."""

    def read(path: str, resolved: Path) -> Iterator[Row]:
        lines = io.StringIO(_read_text(path, resolved), newline="")
        # Strict: an unclosed quote is an error instead of a field that swallows the file.
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        start = 1
        while True:
            try:
                fields = next(reader, None)
            except csv.Error as error:
                msg = f"{path}:{start}: not valid {resolved.suffix[1:].lower()}: {error}"
                raise DataError(msg) from None
            if fields is None:
                return
            origin, start = f"{path}:{start}", reader.line_num + 1
            if not fields:
                continue
            if header is None:
                header = _header(fields, origin)
            elif len(fields) != len(header):
                msg = f"{origin}: {len(fields)} columns where the header has {len(header)}"
                raise DataError(msg)
            else:
                yield origin, dict(zip(header, fields, strict=True))

    return read


def _header(fields: list[str], origin: str) -> list[str]:
    """Return the column names, which must differ."""
    names = [field.strip() for field in fields]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        msg = f"{origin}: column names occur twice: {', '.join(map(repr, repeated))}"
        raise DataError(msg)
    return names


def _read_parquet(path: str, resolved: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file."""
    try:
        file = pq.ParquetFile(resolved)
        number = 0
        for batch in file.iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", values
    except (pa.ArrowException, OSError) as error:
        msg = f"{path}: not a readable parquet file: {error}"
        raise DataError(msg) from None


_READERS: dict[str, Callable[[str, Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".csv": _delimited(","),
    ".tsv": _delimited("\t"),
    ".parquet": _read_parquet,
}
