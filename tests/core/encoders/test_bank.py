"""Tests of the embedding bank."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import tiny_sentence_transformer

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders import batching
from domain_embeddings.core.encoders.bank import EmbeddingBank, text_key
from domain_embeddings.core.errors import DataError, UserError

TEXTS = ["the lost card", "a red tree", "fish in water", "sort the list"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_sentence_transformer(tmp_path_factory.mktemp("tiny"))


def build(model, items, header=None) -> Bundle:
    return EmbeddingBank.build(model, items, header=header, show_progress=False)


@pytest.fixture
def encoded(monkeypatch):
    """Record what is encoded, without a model: the vector is the hash of the text."""
    seen: list[str] = []

    def encode(model, texts, **_):
        seen.extend(texts)
        keys = [np.frombuffer(text_key("", text)[:8], dtype=np.uint8) for text in texts]
        vectors = np.array(keys, dtype=np.float32) + 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    monkeypatch.setattr(batching, "encode", encode)
    return seen


def test_every_distinct_item_is_encoded_exactly_once(encoded):
    bundle = build(None, [("", text) for text in TEXTS * 3])
    assert sorted(encoded) == sorted(TEXTS)
    assert bundle["vectors"].shape == (len(TEXTS), 8)


def test_a_text_under_two_prompts_has_two_vectors(encoded):
    bank = EmbeddingBank(build(None, [("query: ", "card"), ("passage: ", "card")]))
    assert sorted(encoded) == ["passage: card", "query: card"]
    as_query, as_document = bank.lookup(["card"], "query: "), bank.lookup(["card"], "passage: ")
    assert not np.allclose(as_query, as_document)


def test_lookup_returns_what_the_model_says_in_the_order_asked_for(model):
    bank = EmbeddingBank(build(model, [("", text) for text in TEXTS]))
    asked = [TEXTS[2], TEXTS[0], TEXTS[2], TEXTS[3]]
    expected = model.encode(asked, normalize_embeddings=True)
    np.testing.assert_allclose(bank.lookup(asked), expected, atol=1e-6)
    assert bank.lookup(asked).dtype == np.float32


def test_the_prompt_is_put_in_front_of_the_text(model):
    bank = EmbeddingBank(build(model, [("the red ", "card")]))
    expected = model.encode(["the red card"], normalize_embeddings=True)
    np.testing.assert_allclose(bank.lookup(["card"], "the red "), expected, atol=1e-6)


def test_the_order_of_the_items_does_not_matter(encoded):
    forward = build(None, [("", text) for text in TEXTS])
    backward = build(None, [("", text) for text in reversed(TEXTS)])
    np.testing.assert_array_equal(forward["keys"], backward["keys"])
    np.testing.assert_array_equal(forward["vectors"], backward["vectors"])


def test_keys_are_sorted_bytes(encoded):
    keys = [bytes(row) for row in build(None, [("", str(i)) for i in range(200)])["keys"]]
    assert keys == sorted(keys)


def test_every_one_of_many_texts_is_found(encoded):
    texts = [f"text {i}" for i in range(2_000)]
    bank = EmbeddingBank(build(None, [("", text) for text in texts]))
    found = bank.lookup(texts)
    first = np.array([text_key("", text)[0] + 1.0 for text in texts])
    # The hash of each text was its vector, up to length.
    ratios = found[:, 0] / found[:, 1]
    second = np.array([text_key("", text)[1] + 1.0 for text in texts])
    np.testing.assert_allclose(ratios, first / second, rtol=1e-5)


def test_an_absent_text_is_named(encoded):
    bank = EmbeddingBank(build(None, [("", text) for text in TEXTS], {"model": "m"}))
    with pytest.raises(UserError, match=r"'never seen'.*1 of 2 texts"):
        bank.lookup([TEXTS[0], "never seen"])
    with pytest.raises(UserError, match="prompt 'query: '"):
        bank.lookup([TEXTS[0]], "query: ")


def test_a_vector_that_is_not_finite_is_refused_and_its_text_named(monkeypatch):
    def encode(model, texts, **_):
        return np.where(np.array([["bad" in text] for text in texts]), np.nan, np.ones((1, 4)))

    monkeypatch.setattr(batching, "encode", encode)
    with pytest.raises(DataError, match=r"1 of 2 texts .* 'bad text'"):
        build(None, [("", "good text"), ("", "bad text")])


def test_nothing_to_embed_is_refused():
    with pytest.raises(DataError, match="no text"):
        build(None, [])


def test_no_texts_give_no_vectors(encoded):
    assert EmbeddingBank(build(None, [("", "x")])).lookup([]).shape == (0, 8)


def test_memory_mapped_vectors_are_read_without_loading_them(encoded, tmp_path):
    bundle = build(None, [("", text) for text in TEXTS])
    np.save(tmp_path / "vectors.npy", bundle["vectors"])
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    bank = EmbeddingBank(Bundle({"vectors": mapped, "keys": bundle["keys"]}, {}))
    assert isinstance(bank.vectors, np.memmap)
    np.testing.assert_array_equal(bank.lookup(TEXTS), EmbeddingBank(bundle).lookup(TEXTS))
