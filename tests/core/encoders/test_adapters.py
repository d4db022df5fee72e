from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import tiny_family_model

from domain_embeddings.core.encoders.adapters import (
    add_adapters,
    count_parameters,
    merge_adapters,
)
from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.parameters import LoraParameters

TEXTS = ["the card", "a", "lost card and a stolen card for the bank"]


def embed(model) -> np.ndarray:
    return encode(model, TEXTS, show_progress=False)


def disturb(model) -> None:
    """Give every adapter a B, as training would."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


@pytest.mark.parametrize("family", ["bert", "bge_m3", "modernbert", "gte", "qwen3"])
def test_merged_weights_are_the_model_with_its_adapters(tmp_path, family):
    model = tiny_family_model(tmp_path, family)
    names = list(model.state_dict())
    before = embed(model)
    add_adapters(model, LoraParameters(rank=4, dropout=0.5), seed=0)
    np.testing.assert_array_equal(embed(model), before)
    disturb(model)
    adapted = embed(model)
    assert np.abs(adapted - before).max() > 0.01
    merge_adapters(model)
    np.testing.assert_allclose(embed(model), adapted, atol=1e-5)
    assert list(model.state_dict()) == names
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_only_the_adapters_of_the_chosen_layers_train(tmp_path):
    model = tiny_family_model(tmp_path, "bert", width=32, layers=3)
    add_adapters(model, LoraParameters(rank=4, modules=["query", "attention.output.dense"]), seed=0)
    trains = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trains) == 3 * 2 * 2
    assert all("lora" in name for name in trains)
    assert all("query" in name or "attention.output.dense" in name for name in trains)
    assert count_parameters(model)[0] == 3 * 2 * 4 * (32 + 32)


def test_all_means_every_linear_layer_of_the_transformer_but_not_the_pooler(tmp_path):
    model = tiny_family_model(tmp_path, "bert", layers=2)
    add_adapters(model, LoraParameters(), seed=0)
    names = [name for name, _ in model.named_parameters() if "lora_A" in name]
    assert len(names) == 2 * 6
    assert not any("pooler" in name for name in names)


def test_a_layer_that_does_not_exist_is_refused_with_those_that_do(tmp_path):
    model = tiny_family_model(tmp_path, "qwen3")
    wrong = LoraParameters(modules=["query", "self_attn.q_proj"])
    with pytest.raises(ParameterError, match=r"lora\.modules: \['query'\].*self_attn\.q_proj"):
        add_adapters(model, wrong, seed=0)


def test_the_seed_decides_the_start_and_other_random_numbers_do_not_move(tmp_path):
    model = tiny_family_model(tmp_path, "bert")
    starts = []
    for seed in (0, 0, 1):
        torch.manual_seed(5)
        add_adapters(model, LoraParameters(), seed=seed)
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(5))
        starts.append(
            torch.cat([p.flatten() for n, p in model.named_parameters() if "lora_A" in n])
        )
        merge_adapters(model)
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_a_model_without_adapters_stays_as_it_is(tmp_path):
    model = tiny_family_model(tmp_path, "bert")
    before = embed(model)
    merge_adapters(model)
    np.testing.assert_array_equal(embed(model), before)
