from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_models import FAMILIES, tiny_family_model

from domain_embeddings.core.encoders.backbones import TokenInput
from domain_embeddings.core.encoders.batching import encode, pad_rows, tokenise
from domain_embeddings.core.encoders.loading import describe, load_encoder
from domain_embeddings.core.errors import ParameterError

TEXTS = ["the card", "a", "lost card and a stolen card for the bank", "cash machine fee", "fish 7"]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tiny_family_model(folder, request.param)
    return FAMILIES[request.param], load_encoder(str(folder / "model"))


def test_embeddings_are_those_of_the_library_with_every_prompt(family):
    kind, model = family
    for prompt in {"", *kind.prompts.values()}:
        ours = encode(model, [prompt + text for text in TEXTS], show_progress=False)
        theirs = model.encode(TEXTS, prompt=prompt, normalize_embeddings=True)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_prompts_and_pooling_are_known(family):
    kind, model = family
    facts = describe(model)
    assert facts["pooling"] == kind.pooling
    assert {name: text for name, text in facts["prompts"].items() if text} == {
        name: text for name, text in kind.prompts.items() if text
    }
    if kind.prompts:
        named = model.encode(TEXTS, prompt_name="query", normalize_embeddings=True)
        bare = encode(model, TEXTS, show_progress=False)
        assert np.abs(named - bare).max() > 0.01


def test_padding_changes_nothing(family):
    _, model = family
    together = encode(model, TEXTS, show_progress=False)
    alone = np.concatenate([encode(model, [text], show_progress=False) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_embeddings_in_the_place_of_token_ids_give_the_same_states(family):
    _, model = family
    tokens = TokenInput(model)
    assert tokens.shared
    texts = [*TEXTS, f"card {model.tokenizer.pad_token} fee"]
    chunk = pad_rows(model, tokenise(model, texts))
    valid = chunk["attention_mask"].bool()
    with torch.no_grad():
        expected = model[0](dict(chunk))["token_embeddings"][valid]
        (features,) = tokens([chunk])
        assert "input_ids" not in features
        given = model[0](dict(features))["token_embeddings"][valid]
    torch.testing.assert_close(given, expected, atol=1e-6, rtol=0)


def test_a_backbone_that_needs_the_ids_gets_them(tmp_path, monkeypatch):
    model = tiny_family_model(tmp_path, "bge_m3")
    chunk = pad_rows(model, tokenise(model, TEXTS))
    embeddings = model[0].auto_model.embeddings
    forward = embeddings.forward

    def counts_from_the_right(input_ids=None, **kwargs):
        if input_ids is None:
            kwargs["position_ids"] = kwargs["position_ids"].flip(1)
        return forward(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(embeddings, "forward", counts_from_the_right)
    tokens = TokenInput(model)
    assert not tokens.shared
    assert torch.equal(tokens([chunk])[0]["input_ids"], chunk["input_ids"])

    def wants_ids(input_ids=None, **kwargs):
        if input_ids is None:
            msg = "no ids"
            raise ValueError(msg)
        return forward(input_ids=input_ids, **kwargs)

    monkeypatch.setattr(embeddings, "forward", wants_ids)
    assert not TokenInput(model).shared


def test_a_saved_model_is_the_same_in_plain_sentence_transformers(family, tmp_path):
    _, model = family
    model.save_pretrained(str(tmp_path / "again"))
    loaded = SentenceTransformer(str(tmp_path / "again"))
    theirs = loaded.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encode(model, TEXTS, show_progress=False), theirs, atol=1e-5)


def test_a_tokenizer_that_rewrites_texts_into_a_chat_is_refused(tmp_path):
    model = tiny_family_model(tmp_path, "qwen3")
    template = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
    model.tokenizer.chat_template = template
    model[0].modality_config["message"] = {**model[0].modality_config["text"], "format": "flat"}
    model.save_pretrained(str(tmp_path / "chat"))
    with pytest.raises(ParameterError, match=r"reference_model\.source.*chat template"):
        load_encoder(str(tmp_path / "chat"))
