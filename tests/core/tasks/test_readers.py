from __future__ import annotations

import json

import pandas as pd
import pytest

from domain_embeddings.core.errors import DataError
from domain_embeddings.core.tasks.readers import read_hub, read_table, value_of
from domain_embeddings.core.tasks.spec import HubSource

ROWS = [
    {"text": 'He said "no", twice', "label": "a"},
    {"text": "tab\there", "label": "b"},
    {"text": "two\nlines \u2028 and a form feed \x0c", "label": "c"},
]


def write(folder, name, content):
    data = content if isinstance(content, bytes) else content.encode()
    (folder / name).write_bytes(data)
    return name


def write_all(folder, rows):
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "t.tsv", index=False, sep="\t")
    frame.to_parquet(folder / "t.parquet")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "t.jsonl").write_text(lines, encoding="utf-8")


def error(folder, name, content) -> str:
    write(folder, name, content)
    with pytest.raises(DataError) as caught:
        read_table(name, folder)
    return str(caught.value)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    write_all(tmp_path, ROWS)
    table = read_table(f"t.{suffix}", tmp_path)
    assert [dict(values) for _, values in table.rows] == ROWS


def test_origin_is_the_line_a_row_starts_at(tmp_path):
    content = 'text,label\n"one\ntwo",a\n\nthree,b\n'
    table = read_table(write(tmp_path, "t.csv", content), tmp_path)
    assert [origin for origin, _ in table.rows] == ["t.csv:2", "t.csv:5"]
    table = read_table(write(tmp_path, "t.jsonl", '{"a": 1}\n\n{"a": 2}\n'), tmp_path)
    assert [origin for origin, _ in table.rows] == ["t.jsonl:1", "t.jsonl:3"]


@pytest.mark.parametrize("content", [b"\xef\xbb\xbftext,label\nx,a\n", b"text,label\r\nx,a\r\n"])
def test_byte_order_mark_and_windows_line_ends_are_tolerated(tmp_path, content):
    table = read_table(write(tmp_path, "t.csv", content), tmp_path)
    assert [dict(values) for _, values in table.rows] == [{"text": "x", "label": "a"}]


def test_absolute_paths_are_taken_as_they_are(tmp_path):
    write(tmp_path, "t.csv", "text\nx\n")
    assert len(read_table(str(tmp_path / "t.csv"), tmp_path / "elsewhere").rows) == 1


def test_missing_file_names_the_resolved_path(tmp_path):
    with pytest.raises(DataError) as caught:
        read_table("data/none.csv", tmp_path)
    assert str(caught.value) == (
        f"data/none.csv: no such file (looked for {(tmp_path / 'data/none.csv').resolve()})"
    )


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("e.csv", "", "e.csv: the file has no rows"),
        ("e.csv", "text,label\n", "e.csv: the file has no rows"),
        ("e.jsonl", "\n\n", "e.jsonl: the file has no rows"),
        ("e.jsonl", '{"a": 1}\n{"a": \n', "e.jsonl:2: not valid JSON: Expecting value"),
        ("e.jsonl", '{"a": 1}\n[1]\n', "e.jsonl:2: must be a JSON object, got list"),
        (
            "e.jsonl",
            '{"a": ["\\uD83D\\ude00"]}\n{"a": ["\\uD83D"]}\n',
            "e.jsonl:2: '\\ud83d' is half a",
        ),
        ("e.csv", "a,b\n1,2\n1,2,3\n", "e.csv:3: 3 columns where the header has 2"),
        ("e.tsv", "a\tb\n1\n", "e.tsv:2: 1 columns where the header has 2"),
        ("e.csv", 'a,b\n1,"2\n3,4\n', "e.csv:2: not valid csv: unexpected end of data"),
        ("e.csv", "a,a\n1,2\n", "e.csv:1: column names occur twice: 'a'"),
        ("e.csv", b"a\nx\n\xe9t\xe9\n", "e.csv:3: not UTF-8 (byte 0xe9)"),
        ("e.jsonl", b'{"a": "\xff"}\n', "e.jsonl:1: not UTF-8 (byte 0xff)"),
        ("e.parquet", b"PAR1 nothing", "e.parquet: not a readable parquet file"),
        ("e.txt", "a", "e.txt: unknown file format; allowed: .jsonl, .csv, .tsv, .parquet"),
    ],
)
def test_malformed_files_are_refused_with_file_and_line(tmp_path, name, content, expected):
    assert error(tmp_path, name, content).startswith(expected)


def test_missing_column_lists_the_available_ones():
    with pytest.raises(DataError, match=r"t\.csv:4: no column 'text'; available: body, label"):
        value_of(("t.csv:4", {"body": "x", "label": "a"}), "text")


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "made"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"text": f"{split} {number}", "label": "a"} for number in range(2)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_local_folder_in_hub_form_needs_no_revision(hub_folder):
    table = read_hub(HubSource(path="made"), None, "test", hub_folder)
    assert [(origin, values["text"]) for origin, values in table.rows] == [
        ("made[test]:1", "test 0"),
        ("made[test]:2", "test 1"),
    ]


def test_unknown_split_of_a_hub_set_is_named(hub_folder):
    with pytest.raises(DataError, match=r"made\[dev\]: cannot be loaded: ValueError"):
        read_hub(HubSource(path="made"), None, "dev", hub_folder)


def test_remote_set_needs_a_revision(tmp_path):
    with pytest.raises(DataError, match=r"owner/set: 'hub.revision' is required"):
        read_hub(HubSource(path="owner/set"), None, "test", tmp_path)
