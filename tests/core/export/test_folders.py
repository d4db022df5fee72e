from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.loading import read_widths, weight_hash
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.quantisation import quantiser
from domain_embeddings.core.errors import ParameterError, ProvenanceError
from domain_embeddings.core.export.folders import (
    Shipment,
    chosen_widths,
    exported_folders,
    int8_ranges,
    quantiser_of,
    read_settings,
)


@pytest.mark.parametrize("width", [12, 16])
def test_a_folder_gives_the_prefix_in_plain_sentence_transformers(exported, model, texts, width):
    folder = exported_folders(exported)[width]
    found = SentenceTransformer(str(folder), device="cpu").encode(texts, prompt_name="query")
    full = encode(model, [f"query: {text}" for text in texts], show_progress=False)
    np.testing.assert_allclose(found, prefix(full, width), atol=1e-6)


def test_a_folder_says_what_it_is(exported, model, ranges):
    folder = exported_folders(exported)[16]
    settings = read_settings(folder)
    assert settings["width"] == 16
    assert settings["full_width"] == 32
    assert settings["trained_widths"] == [8, 16, 32] == read_widths(folder)
    assert settings["trained"] and settings["recommended"]
    assert settings["prompts"] == {"query": "query: ", "document": "passage: "}
    assert settings["max_length"] == 48
    assert settings["base_model"] == {
        "model": "owner/base", "revision": "abc", "weight_hash": "0123"
    }  # fmt: skip
    assert settings["adapted_model"] == {"version": "v1", "weight_hash": weight_hash(model)}
    loaded = SentenceTransformer(str(folder), device="cpu")
    assert settings["weight_hash"] == weight_hash(loaded) != weight_hash(model)
    low, high = settings["quantisation"]["int8"]
    assert np.array_equal(np.float32([low, high]), ranges["adapted_16"])
    config = json.loads((folder / "config_sentence_transformers.json").read_text("utf-8"))
    assert config["quantisation"] == settings["quantisation"]


def test_the_card_of_a_folder_is_about_its_width(exported):
    card = (exported_folders(exported)[12] / "README.md").read_text("utf-8")
    assert card.startswith("---\ntags:\n- a\n---\n\n# Domain embeddings, width 12\n")
    assert "truncate_dim=16" not in card
    assert "12 coordinates, length 1" in card
    assert "`prompt_name='query'` (`query: `)" in card
    assert card.endswith("## Widths\n\na table\n")


def test_the_restored_quantiser_gives_the_codes_of_the_stored_ranges(
    exported, model, texts, ranges
):
    vectors = prefix(encode(model, texts, show_progress=False), 16)
    settings = read_settings(exported_folders(exported)[16])
    own = quantiser_of(settings, "int8").encode(vectors)
    assert np.array_equal(own, quantiser("int8", "adapted", 16, ranges).encode(vectors))


def test_widths_are_the_recommended_one_or_those_that_are_named():
    assert chosen_widths("recommended", 16, 32) == [16]
    assert chosen_widths([8, 32], 16, 32) == [8, 32]
    with pytest.raises(ParameterError, match=r"export.widths: \[33\] wider than the model"):
        chosen_widths([8, 33], 16, 32)


def test_a_width_that_was_not_trained_is_warned_about(model, ranges, caplog):
    with caplog.at_level(logging.WARNING):
        Shipment(model, [8, 32], 8, "", {}, ranges)
        assert caplog.text == ""
        Shipment(model, [8, 12], 8, "", {}, ranges)
    assert "the model was not trained for [12]" in caplog.text


def test_int8_needs_ranges_of_the_width_and_of_the_weights(shipment, model, ranges):
    shipment.require("int8")
    other = Shipment(model, [8], 8, "", {}, ranges)
    other.require("binary")
    with pytest.raises(ParameterError, match="int8 has no calibrated ranges at width 8"):
        other.require("int8")
    assert int8_ranges(ranges, 8, "0") is None
    with pytest.raises(ProvenanceError, match="other weights"):
        int8_ranges(ranges, 16, "0")
