from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_family_model, tiny_sentence_transformer

from domain_embeddings.core.encoders.batching import (
    count_truncated,
    encode,
    length_sorted_chunks,
    pad_rows,
    token_budget_batches,
    tokenise,
)
from domain_embeddings.core.errors import DataError

TEXTS = ["the card", "a", "lost card and a stolen card for the bank", "cash machine fee", "fish"]
lengths_strategy = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def padded(lengths: np.ndarray, chunks: list[np.ndarray]) -> int:
    return sum(len(chunk) * int(lengths[chunk].max()) for chunk in chunks)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_sentence_transformer(tmp_path_factory.mktemp("model"))


@given(lengths_strategy, st.integers(1, 10))
def test_chunks_are_a_permutation_and_at_most_as_many_as_asked_for(lengths, count):
    chunks = length_sorted_chunks(lengths, count)
    assert sorted(np.concatenate(chunks).tolist()) == list(range(len(lengths)))
    assert len(chunks) <= count


@settings(max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(1, 4))
def test_chunks_waste_as_few_tokens_as_any_split_of_the_sorted_rows(lengths, count):
    values = np.array(lengths)
    ordered = np.sort(values)
    best = min(
        sum(len(part) * part[-1] for part in np.split(ordered, list(cuts)))
        for size in range(min(count, len(ordered)))
        for cuts in itertools.combinations(range(1, len(ordered)), size)
    )
    assert padded(values, length_sorted_chunks(values, count)) == best


@given(lengths_strategy, st.integers(1, 200))
def test_batches_respect_the_token_budget_unless_a_row_is_longer_than_it(lengths, budget):
    values = np.array(lengths)
    batches = list(token_budget_batches(values, budget))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(values)))
    assert all(len(b) == 1 or len(b) * values[b].max() <= budget for b in batches)


def test_encoding_in_sorted_batches_equals_the_library(model):
    ours = encode(model, TEXTS, batch_tokens=16, show_progress=False)
    theirs = model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "bge_m3", "qwen3", "qwen3_right"])
def test_padding_equals_the_tokenizers(tmp_path, family):
    model = tiny_family_model(tmp_path, family)
    rows = tokenise(model, TEXTS)
    expected = model.tokenizer.pad(rows, padding=True, return_tensors="pt")
    found = pad_rows(model, rows)
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        assert torch.equal(found[name], values)


def test_fields_that_only_the_tokenizer_knows_are_left_to_it(model):
    rows = [{**row, "special_tokens_mask": [1, 0, 1]} for row in tokenise(model, ["a", "the"])]
    assert "special_tokens_mask" in pad_rows(model, rows)


def test_tokens_equal_those_the_library_feeds_the_model(model):
    rows = tokenise(model, TEXTS)
    features = model.preprocess(TEXTS)
    for row, ids, mask in zip(rows, features["input_ids"], features["attention_mask"], strict=True):
        assert row["input_ids"] == ids[mask.bool()].tolist()


def test_truncated_texts_are_counted(tmp_path):
    model = tiny_sentence_transformer(tmp_path)
    model.max_seq_length = 6
    assert count_truncated(model, TEXTS) == 1
    assert max(len(row["input_ids"]) for row in tokenise(model, TEXTS)) == 6


def test_a_non_finite_embedding_names_its_text(tmp_path):
    model = tiny_sentence_transformer(tmp_path)
    with torch.no_grad():
        embedding = model[0].auto_model.embeddings.word_embeddings.weight
        embedding[model.tokenizer.convert_tokens_to_ids("fish")] = torch.nan
    with pytest.raises(DataError, match="fish"):
        encode(model, TEXTS, show_progress=False)
