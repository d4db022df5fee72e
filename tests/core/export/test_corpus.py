from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from task_data import records, specs

from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.export.corpus import (
    CorpusFile,
    Document,
    document_prompt,
    read_blocks,
    task_documents,
    write_vectors,
)
from domain_embeddings.core.export.folders import (
    exported_folders,
    load_folder,
    quantiser_of,
    read_settings,
)


def documents(texts):
    for i, text in enumerate(texts):
        yield Document(f"d{i}", text, not text.strip(), f"made.jsonl:{i + 1}")


def write(root, exported, stream, precision="float32", **options):
    folders = exported_folders(exported)
    root.mkdir()
    settings = [read_settings(folder) for folder in folders.values()]
    model = load_folder(folders[16], device="cpu")
    return write_vectors(
        root, model, settings, stream, precision=precision, batch_tokens=2048, **options
    )


def read(root, width):
    blocks = list(read_blocks(exported_folders(root)[width], rows=13))
    return [name for ids, _ in blocks for name in ids], np.concatenate([v for _, v in blocks])


@pytest.mark.parametrize("precision", ["float32", "int8", "binary"])
def test_vectors_are_those_of_the_full_model_at_every_width(
    exported, model, texts, tmp_path, precision
):
    details = write(tmp_path / "all", exported, documents(texts), precision, block_rows=17)
    assert details["documents"] == len(texts)
    full = encode(model, texts, show_progress=False)
    for width in (12, 16):
        ids, found = read(tmp_path / "all", width)
        assert ids == [f"d{i}" for i in range(len(texts))]
        settings = read_settings(exported_folders(tmp_path / "all")[width])
        assert (settings["precision"], settings["documents"]) == (precision, len(texts))
        expected = quantiser_of(settings, precision).encode(prefix(full, width))
        assert found.dtype == expected.dtype
        # Two ways to one vector differ by rounding, which may move a code by one step.
        difference = np.abs(found.astype(float) - expected.astype(float))
        if precision == "binary":
            assert np.mean(difference > 0) < 0.02
        else:
            assert difference.max() <= (1e-6 if precision == "float32" else 1)


def test_blocks_make_no_difference(exported, texts, tmp_path):
    write(tmp_path / "one", exported, documents(texts))
    write(tmp_path / "many", exported, documents(texts), block_rows=7)
    one, many = (read(tmp_path / name, 16) for name in ("one", "many"))
    assert one[0] == many[0]
    np.testing.assert_allclose(one[1], many[1], atol=1e-6)


def test_the_stream_is_read_block_by_block(exported, texts, tmp_path):
    seen = []

    def stream():
        for document in documents(texts[:30]):
            seen.append(sorted(tmp_path.rglob("*.parquet")) != [])
            yield document

    write(tmp_path / "out", exported, stream(), block_rows=10)
    # The first block is on disk before the second one is asked for.
    assert seen == [False] * 10 + [True] * 20


def test_empty_and_truncated_texts_are_counted(exported, tmp_path):
    details = write(tmp_path / "out", exported, documents(["a bank", " ", "money " * 80, ""]))
    assert details["documents"] == 2
    assert details["dropped"] == {"empty text": 2}
    assert details["truncated"] == 1
    assert read(tmp_path / "out", 12)[0] == ["d0", "d2"]


def test_an_id_twice_and_a_corpus_of_nothing_are_refused(exported, tmp_path):
    twice = [Document("d", "a", False, "f:1"), Document("d", "b", False, "f:2")]
    with pytest.raises(DataError, match=r"^f:2: the id 'd' is there a second time"):
        write(tmp_path / "twice", exported, twice)
    with pytest.raises(DataError, match=r"no text to embed \(1 are empty\)"):
        write(tmp_path / "none", exported, documents([" "]))


def test_files_are_read_alike_whatever_their_format(tmp_path):
    rows = [{"doc": 1, "body": "one"}, {"doc": "b", "body": None}, {"doc": "c", "body": "a\u2028b"}]
    jsonl = tmp_path / "c.jsonl"
    jsonl.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    parquet = tmp_path / "c.parquet"
    pd.DataFrame(rows).astype({"doc": str}).to_parquet(parquet)
    found = [list(CorpusFile(path, "doc", "body").documents("p: ")) for path in (jsonl, parquet)]
    assert [d[:3] for d in found[0]] == [d[:3] for d in found[1]] == [
        ("1", "p: one", False), ("b", "p: ", True), ("c", "p: a\u2028b", False)
    ]  # fmt: skip
    assert [d.origin for d in found[0]] == [f"{jsonl}:1", f"{jsonl}:3", f"{jsonl}:5"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1}', "c.jsonl:2: no column 'text'; available: id"),
        ('{"id": null, "text": "a"}', "c.jsonl:2: no value in column 'id'"),
        ("{", "c.jsonl:2: not valid JSON"),
        ("[1]", "c.jsonl:2: must be a JSON object, got list"),
        ('{"id": 2, "text": "cut \\ud83d"}', r"c.jsonl:2: '\\ud83d' is half a character"),
        ('{"id": 2, "text": "caf\udce9"}', "c.jsonl:2: not UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": 1, "text": "a"}\n' + line, "utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=message):
        list(CorpusFile(path).documents(""))


def test_what_is_no_parquet_file_is_named(tmp_path):
    (tmp_path / "c.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"c.parquet: not a readable parquet file"):
        list(CorpusFile(tmp_path / "c.parquet").documents(""))


def test_a_parquet_file_without_the_column_is_named(tmp_path):
    pd.DataFrame({"id": ["a"]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c.parquet: no column 'text'; available: id"):
        list(CorpusFile(tmp_path / "c.parquet").documents(""))


def test_the_documents_of_searches_are_the_corpus_of_the_tasks():
    table = records(rows=5)
    chosen = specs("classification", "retrieval", prompts={"query": "q: ", "document": "d: "})
    found = list(task_documents(table, chosen, {}))
    own = table[table["task"] == "retrieval"]
    assert [d.id for d in found] == [f"retrieval/{name}" for name in own["text2_id"].unique()]
    assert found[0].text == "d: " + own["text2"].iloc[0].strip()
    # Without a search it is all texts, with the prompt that they are scored with.
    alone = list(task_documents(table, specs("classification"), {"query": "model: "}))
    assert len(alone) == (table["task"] == "classification").sum()
    assert all(d.text.startswith("model: ") for d in alone)
    assert len({d.id for d in alone}) == len(alone)


def test_documents_of_a_file_carry_the_prompt_of_the_model():
    assert document_prompt({"query": "q: ", "passage": "p: "}) == "p: "
    assert document_prompt({"query": "q: "}) == ""
