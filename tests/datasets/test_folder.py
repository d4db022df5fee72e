from __future__ import annotations

import json

import pytest
from kedro.io import DatasetError, Version

from domain_embeddings.core.errors import DataError, ParameterError, user_error
from domain_embeddings.datasets.corpus import CorpusDataset
from domain_embeddings.datasets.folder import FolderDataset


def fill(root):
    (root / "inner").mkdir()
    (root / "inner/a.txt").write_text("four")
    return {"said": 1}


def test_a_folder_is_filled_and_described(tmp_path):
    data = FolderDataset(filepath=str(tmp_path / "f"), version=Version(None, "v1"))
    assert not data.exists()
    assert data.preview() == "{}"
    data.save(fill)
    assert data.exists()
    assert data.load() == tmp_path / "f/v1/f"
    manifest = json.loads((data.load() / "manifest.json").read_text("utf-8"))
    assert manifest["details"] == {"said": 1}
    assert manifest["files"] == {"inner/a.txt": 4}
    assert manifest["bytes"] == 4
    assert manifest["seconds"] >= 0
    assert json.loads(data.preview()) == manifest


def test_a_folder_that_could_not_be_filled_is_not_there(tmp_path):
    def fail(root):
        fill(root)
        msg = "disk full"
        raise OSError(msg)

    data = FolderDataset(filepath=str(tmp_path / "f"), version=Version(None, "v1"))
    with pytest.raises(DatasetError, match="disk full"):
        data.save(fail)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not data.exists()
    (tmp_path / "f/v1/f").mkdir(parents=True)
    with pytest.raises(DatasetError, match="never saved completely"):
        data.load()


def test_the_corpus_is_a_file_or_nothing(tmp_path):
    assert CorpusDataset().load() is None
    (tmp_path / "c.jsonl").write_text('{"doc": "a", "text": "b"}')
    data = CorpusDataset(filepath=str(tmp_path / "c.jsonl"), columns={"id": "doc"})
    assert data.exists()
    assert [d.id for d in data.load().documents("")] == ["a"]
    with pytest.raises(DatasetError, match="read-only"):
        data.save(1)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("absent.jsonl", DataError, "there is no file"),
        ("c.csv", ParameterError, "allowed: a .jsonl or .parquet file"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_refused_before_a_run(tmp_path, name, kind, message):
    (tmp_path / "c.csv").write_text("id,text")
    with pytest.raises(DatasetError) as error:
        CorpusDataset(filepath=str(tmp_path / name)).exists()
    found = user_error(error.value)
    assert isinstance(found, kind)
    assert message in str(found)


def test_a_column_that_the_corpus_does_not_have_is_refused():
    with pytest.raises(DatasetError, match=r"unknown \['title'\]; allowed: id, text"):
        CorpusDataset(columns={"title": "t"})
