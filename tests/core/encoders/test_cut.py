from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense
from tiny_models import WORDS, tiny_family_model, tiny_sentence_transformer
from torch import nn

from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.cut import cut_model
from domain_embeddings.core.encoders.prefix import prefix
from domain_embeddings.core.encoders.rotation import rotate_model

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, size=size)) for size in (1, 3, 9, 20, 2, 2)]


def rotated(folder, mean):
    model = tiny_sentence_transformer(folder)
    rotate_model(model, np.linalg.qr(RNG.normal(size=(32, 32)))[0], mean)
    return model


def ending_in_tanh(folder):
    model = tiny_sentence_transformer(folder)
    model.append(Dense(32, 24, activation_function=nn.Tanh()))
    return model.eval()


MODELS = {
    "normalised": tiny_sentence_transformer,
    "rotated": lambda folder: rotated(folder, np.zeros(32)),
    "rotated and centred": lambda folder: rotated(folder, RNG.normal(size=32) * 0.05),
    "not normalised": lambda folder: tiny_family_model(folder, "gte_modernbert"),
    "ending in a layer that is not linear": ending_in_tanh,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_saved_cut_is_the_prefix_of_the_full_model_in_plain_sentence_transformers(
    name, tmp_path
):
    model = MODELS[name](tmp_path / "full")
    expected = encode(model, TEXTS, show_progress=False)
    for width in (1, 8, expected.shape[1]):
        cut_model(model, width).save_pretrained(str(tmp_path / f"{width}"), create_model_card=False)
        found = SentenceTransformer(str(tmp_path / f"{width}"), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(found, prefix(expected, width), atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    # The given model is what it was.
    assert np.array_equal(encode(model, TEXTS, show_progress=False), expected)


def test_a_rotation_and_the_cut_are_one_layer(tmp_path):
    model = rotated(tmp_path, np.zeros(32))
    shipped = cut_model(model, 8)
    assert len(shipped) == len(model)
    [dense] = [module for module in shipped if isinstance(module, Dense)]
    assert torch.equal(dense.linear.weight, model[-2].linear.weight[:8])


def test_prompts_and_maximum_length_are_kept(tmp_path):
    model = tiny_family_model(tmp_path, "e5")
    model.max_seq_length = 17
    cut_model(model, 8).save_pretrained(str(tmp_path / "cut"), create_model_card=False)
    loaded = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    assert loaded.prompts == model.prompts
    assert loaded.prompts["query"] == "query: "
    assert loaded.max_seq_length == 17
    assert loaded.similarity_fn_name == "cosine"


@pytest.mark.parametrize("width", [0, 33])
def test_a_width_that_the_model_does_not_have_is_refused(width, tmp_path):
    with pytest.raises(ValueError, match="must be between 1 and 32"):
        cut_model(tiny_sentence_transformer(tmp_path), width)
