from __future__ import annotations

import sys

import numpy as np
import pytest
from tiny_models import tiny_family_model

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.export.folders import exported_folders, load_folder, read_settings
from domain_embeddings.core.export.onnx import (
    OnnxEncoder,
    check_onnx,
    export_onnx,
    require_packages,
    ship_onnx,
)


@pytest.fixture(scope="module")
def shipped(exported, texts, tmp_path_factory):
    source = exported_folders(exported)[16]
    target = tmp_path_factory.mktemp("onnx")
    model = load_folder(source, device="cpu")
    return model, target, ship_onnx(model, source, target, texts[:40], 1e-5, int8=True)


def test_the_graph_gives_the_vectors_of_the_folder_at_every_length_and_batch_size(shipped, texts):
    model, folder, _ = shipped
    prompted = [f"query: {text}" for text in texts]
    expected = model.encode(texts, prompt_name="query")
    onnx = OnnxEncoder(folder)
    for size in (1, 7, 90):
        np.testing.assert_allclose(onnx.encode(prompted, size), expected, atol=1e-5)


def test_the_check_is_kept_with_the_graph(shipped):
    _, folder, found = shipped
    assert found["texts"] == 40
    assert found["shortest"] < 5
    assert found["longest"] > 30
    assert 0 < found["max_abs_difference"] < 1e-5
    assert found["min_cosine"] == pytest.approx(1, abs=1e-5)
    assert read_settings(folder)["onnx"] == {"opset": 18, **found}


def test_texts_beyond_the_maximum_length_are_cut_alike(shipped):
    model, folder, _ = shipped
    long = ["money bank " * 60, "money"]
    np.testing.assert_allclose(OnnxEncoder(folder).encode(long), model.encode(long), atol=1e-5)


def test_a_graph_that_does_not_give_the_vectors_of_torch_is_refused(shipped, texts):
    model, folder, _ = shipped
    bias = model[0].auto_model.embeddings.LayerNorm.bias.data
    bias += 0.5
    try:
        with pytest.raises(ParameterError, match="differ from torch by 0"):
            check_onnx(model, folder, texts[:5], 1e-4)
    finally:
        bias -= 0.5


def test_the_graph_with_int8_weights_is_smaller_and_said_to_be_near(shipped, texts):
    model, folder, found = shipped
    sizes = [(folder / name).stat().st_size for name in ("model_int8.onnx", "model.onnx")]
    assert sizes[0] < sizes[1]
    vectors = OnnxEncoder(folder, "model_int8.onnx").encode(texts[:40])
    cosines = np.sum(vectors * model.encode(texts[:40]), axis=1)
    assert found["int8"]["min_cosine"] == pytest.approx(cosines.min(), abs=1e-3)
    assert found["int8"]["max_abs_difference"] > found["max_abs_difference"]
    assert 0.9 < found["int8"]["min_cosine"] <= found["int8"]["mean_cosine"] < 1


def test_an_export_needs_none_of_the_packages_of_the_other_exporter(model, tmp_path, monkeypatch):
    for name in ("onnxscript", "onnx_ir"):
        monkeypatch.setitem(sys.modules, name, None)
    export_onnx(model, tmp_path)
    assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize("family", ["bge_m3", "modernbert", "qwen3"])
def test_other_families_are_exported_as_well(family, texts, tmp_path):
    model = tiny_family_model(tmp_path / "model", family)
    export_onnx(model, tmp_path)
    check_onnx(model, tmp_path, texts, 1e-5)


def test_what_cannot_be_exported_is_named_with_the_reason(tmp_path, monkeypatch):
    model = tiny_family_model(tmp_path / "model", "bert")
    monkeypatch.setattr(type(model[1]), "forward", lambda self, features: int("a reason"))
    with pytest.raises(ParameterError, match=r"export.onnx: BertModel cannot be exported.*allowed"):
        export_onnx(model, tmp_path)


def test_a_tokenizer_that_only_python_can_run_is_refused(tmp_path, monkeypatch):
    model = tiny_family_model(tmp_path / "model", "bert")
    monkeypatch.setattr(type(model.tokenizer), "is_fast", False)
    with pytest.raises(ParameterError, match=r"has no tokenizer.json .*allowed: false"):
        export_onnx(model, tmp_path)


def test_packages_that_are_missing_are_named(monkeypatch):
    require_packages()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ParameterError, match="needs the packages onnx, onnxruntime, which"):
        require_packages()
