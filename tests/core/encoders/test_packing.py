from __future__ import annotations

import pytest
import torch
from tiny_models import FAMILIES, tiny_family_model

from domain_embeddings.core.encoders.batching import pad_rows, tokenise
from domain_embeddings.core.encoders.loading import backbone
from domain_embeddings.core.encoders.packing import (
    NAME,
    can_pack,
    pack_rows,
    packed_attention,
    packing,
)

TEXTS = ["a", "lost card", "lost card", "the card was lost in the street on the way to the bank"]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return tiny_family_model(tmp_path_factory.mktemp(request.param), request.param)


def rows_of(model):
    return sorted(tokenise(model, TEXTS), key=lambda row: len(row["input_ids"]))


def test_a_packed_row_has_every_token_once_and_counts_positions_anew_for_every_text(model):
    rows = rows_of(model)
    packed = pack_rows(model, rows)
    lengths = [len(row["input_ids"]) for row in rows]
    assert packed["input_ids"].tolist() == [[token for row in rows for token in row["input_ids"]]]
    assert packed["cu_seq_lens_q"].tolist() == [0, *torch.tensor(lengths).cumsum(0).tolist()]
    first = packed["position_ids"].min()
    assert packed["position_ids"].tolist() == [[i + first for n in lengths for i in range(n)]]
    assert [n for count, n in packed["packed_groups"] for _ in range(count)] == lengths
    assert len(packed["packed_groups"]) == len(set(lengths)) < len(lengths)


def test_packed_embeddings_are_those_of_the_texts_alone(model):
    alone = torch.stack([model(pad_rows(model, [row]))["sentence_embedding"][0]
                         for row in rows_of(model)])  # fmt: skip
    with packing(model):
        together = model(pack_rows(model, rows_of(model)))["sentence_embedding"]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_padded_batches_stay_what_they_are_and_the_attention_is_put_back(model):
    before = backbone(model).config._attn_implementation
    padded = pad_rows(model, rows_of(model))
    expected = model(dict(padded))["sentence_embedding"]
    with packing(model):
        assert backbone(model).config._attn_implementation == NAME
        found = model(dict(padded))["sentence_embedding"]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert backbone(model).config._attn_implementation == before
    with pytest.raises(RuntimeError, match="inside"), packing(model):
        raise RuntimeError("inside")
    assert backbone(model).config._attn_implementation == before


def test_every_family_here_can_be_packed(model):
    assert can_pack(model)


def test_attention_reaches_no_other_text_and_drops_what_it_is_told_to():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 7, 4, dtype=torch.float64)
    layer = torch.nn.Module()
    groups = ((2, 2), (1, 3))
    found, _ = packed_attention(layer, query, key, value, None, packed_groups=groups)
    texts = [slice(0, 2), slice(2, 4), slice(4, 7)]
    for own in texts:
        scores = query[0, :, own] @ key[0, :, own].transpose(1, 2) / 2
        expected = scores.softmax(dim=-1) @ value[0, :, own]
        torch.testing.assert_close(found[0, own].transpose(0, 1), expected)
    dropped, _ = packed_attention(layer, query, key, value, None, 1.0, packed_groups=groups)
    assert not dropped.any()


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_holds_the_token_and_one_less_than_its_size_on_each_side(causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 9, 4, dtype=torch.float64)
    found, _ = packed_attention(
        torch.nn.Module(), query, key, value, None,
        is_causal=causal, sliding_window=3, packed_groups=((1, 9),),
    )  # fmt: skip
    for i in range(9):
        seen = [j for j in range(9) if abs(i - j) < 3 and (j <= i or not causal)]
        weights = (key[0, 0, seen] @ query[0, 0, i] / 2).softmax(dim=0)
        torch.testing.assert_close(found[0, i, 0], weights @ value[0, 0, seen])


def test_a_backbone_whose_attention_looks_elsewhere_is_not_packed(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import AutoModel, MPNetConfig

    base = tiny_family_model(tmp_path, "bert")
    config = MPNetConfig(
        vocab_size=len(base.tokenizer), hidden_size=32, num_hidden_layers=1,
        num_attention_heads=4, intermediate_size=32, pad_token_id=base.tokenizer.pad_token_id,
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(tmp_path / "mpnet")
    base.tokenizer.save_pretrained(tmp_path / "mpnet")
    modules = [Transformer(str(tmp_path / "mpnet"), max_seq_length=48), Pooling(32)]
    other = SentenceTransformer(modules=modules, device="cpu")
    attention = backbone(other).config._attn_implementation
    assert not can_pack(other)
    assert backbone(other).config._attn_implementation == attention
