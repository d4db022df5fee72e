"""The methods that add something to a model while it trains: simcse and ese."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import tiny_training
import torch
from tiny_training import SPECS

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.losses.espresso import EspressoLoss
from domain_embeddings.core.losses.info_nce import nested_info_nce
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.objective import Objective

WIDTHS = [8, 32]
settings = partial(tiny_training.settings, chunks=3)
run = partial(tiny_training.run, widths=WIDTHS, chunks=3)
objective = partial(tiny_training.objective, widths=WIDTHS, chunks=3)
batch_of = partial(tiny_training.batch_of, chunks=3)


@pytest.mark.parametrize("method", ["simcse", "ese"])
def test_a_method_trains_and_loads_without_what_it_added(world, method, tmp_path):
    from sentence_transformers import SentenceTransformer

    names = [name for name, _ in world[0].named_parameters()]
    model, history, _ = run(world, method=method, rotation={"when": "none"})
    assert [name for name, _ in model.named_parameters()] == names
    assert np.isfinite(history["value"]).all()
    assert model.trained_widths == ([] if method == "simcse" else WIDTHS)
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"))
    assert not any("head" in name for name in loaded.state_dict())
    np.testing.assert_allclose(loaded.encode("lost card"), model.encode("lost card"), atol=1e-6)
    assert not model[0].auto_model.config.output_hidden_states


def test_views_are_the_distinct_texts_twice(world):
    model, pairs, *_ = world
    twin = pairs.copy()
    twin.loc[3, "anchor"] = twin.loc[0, "positive"]
    tokens = tokenise_pairs(model, twin, SPECS)
    batch = PairCollator(model, tokens, 3, views=True)([{"pair_id": i} for i in range(4)])
    ids = batch["text_id"].tolist()
    rows = len(batch["label"])
    assert ids[:rows] == ids[rows:]
    assert len(set(ids[:rows])) == rows == 7
    expected = {tokens.text[k] for i in range(4) for k in (tokens.anchor[i], tokens.positive[i])}
    assert set(ids) == expected
    assert batch["pair_id"].tolist() == [0, 1, 2, 3]


def test_simcse_is_info_nce_of_two_dropout_views_through_the_head(world):
    loss = objective(world, method="simcse")
    batch, _ = batch_of(world, views=True)
    # Without dropout both views are one: the positive scores 1, the largest score there is.
    with torch.no_grad():
        _, still = loss(batch)
        z = loss.head(torch.tensor(loss.model.encode(_views(world))))
    expected, _ = nested_info_nce(z, z, [32])
    assert still["info_nce"].item() == pytest.approx(expected.item(), abs=1e-4)
    assert still["masked_negatives"].item() == 0
    loss.train()
    torch.manual_seed(0)
    with torch.no_grad():
        _, noisy = loss(batch)
    loss.eval()
    assert noisy["info_nce"].item() > still["info_nce"].item()


def _views(world, rows=12):
    pairs = world[1].iloc[:rows]
    anchors = np.where(pairs["task"] == "faq", "fast ", "") + pairs["anchor"].to_numpy()
    return list(dict.fromkeys([*anchors, *pairs["positive"]]))


def test_simcse_without_dropout_is_refused_and_adapters_may_bring_it(world):
    undropped = copy.deepcopy(world[0])
    for module in undropped.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    other = (undropped, *world[1:])
    with pytest.raises(ParameterError, match=r"training\.method: simcse .* by dropout.*allowed: "):
        run(other, method="simcse", rotation={"when": "none"})
    run(other, method="simcse", rotation={"when": "none"}, lora={"rank": 2, "dropout": 0.5})


def test_the_head_of_simcse_is_trained(world, monkeypatch):
    import domain_embeddings.core.training.train as module

    kept = []

    class Spy(Objective):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            kept.append((self, self.head.linear.weight.detach().clone()))

    monkeypatch.setattr(module, "Objective", Spy)
    run(world, method="simcse", warmup_ratio=0.0)
    ((loss, before),) = kept
    assert not torch.equal(loss.head.linear.weight, before)


def test_ese_reads_the_pooled_states_of_every_layer(world):
    loss = objective(world, method="ese")
    assert loss.layers == [1, 2, 3]
    batch, _ = batch_of(world, views=False)
    model = loss.model
    model[0].auto_model.config.output_hidden_states = True
    with torch.no_grad():
        _, parts = loss(batch)
        pooled = []
        for layer in (1, 2, 3):
            chunks = []
            for chunk in batch["chunks"]:
                states = model[0].auto_model(**chunk).hidden_states[layer]
                mask = chunk["attention_mask"][..., None]
                chunks.append((states * mask).sum(1) / mask.sum(1))
            pooled.append(torch.cat(chunks)[batch["inverse"]])
    model[0].auto_model.config.output_hidden_states = False
    rows = len(batch["pair_id"])
    from domain_embeddings.core.losses.info_nce import false_negative_mask

    ids = batch["text_id"]
    mask, _ = false_negative_mask(
        ids[:rows], ids[rows : 2 * rows], batch["label"], batch["task"], ids[2 * rows :]
    )
    expected = EspressoLoss(WIDTHS)(pooled, rows, mask)
    for name, value in expected.items():
        assert parts[name].item() == pytest.approx(value.item(), rel=1e-4)
    _, mrl = objective(world, method="mrl")(batch)
    assert parts["info_nce"].item() == pytest.approx(mrl["info_nce"].item(), rel=1e-6)
    total = parts["info_nce"] + parts["ese_layers"] + parts["ese_kd"]
    assert parts["loss"].item() == pytest.approx(total.item(), rel=1e-6)


def test_the_same_seed_gives_the_same_bits(world):
    for method in ("simcse", "ese"):
        first, second = (run(world, method=method)[0] for _ in range(2))
        for one, two in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(one, two), method
