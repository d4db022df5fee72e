from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny_models import FAMILIES, tiny_family_model
from tiny_training import SPECS, make_pairs, make_world

from domain_embeddings.core.encoders.backbones import TokenInput
from domain_embeddings.core.encoders.loading import load_encoder
from domain_embeddings.core.encoders.packing import packing
from domain_embeddings.core.encoders.relations import pair_texts
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.losses import AlignmentLoss, RezeLoss, nested_info_nce
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.objective import Objective, forward_chunks, token_layout
from domain_embeddings.core.training.train import train
from domain_embeddings.parameters import METHODS, UNTRAINED, TrainingParameters

WIDTHS = [8, 16, 32]
# Without prompts of their own, so that those of the model are used.
OWN = [{**spec, "prompts": None} for spec in SPECS]
ROWS = 10
ARCHITECTURES = ["bert", "bge_m3", "modernbert", "gte", "qwen3"]


@pytest.fixture(scope="module", params=FAMILIES)
def world(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tiny_family_model(folder, request.param)
    pairs = make_pairs(24).assign(label=None, negatives=[[] for _ in range(24)])
    return make_world(load_encoder(str(folder / "model")), pairs, OWN)


def settings(**changes) -> TrainingParameters:
    values = {"steps": 1, "batch_size": ROWS, "logging_steps": 1, "precision": "fp32", "chunks": 4}
    return TrainingParameters(**{**values, "device": "cpu", "layers": "all", **changes})


def batch_of(world, chunks, rows=None, *, packed=False):
    model, pairs, *_ = world
    tokens = tokenise_pairs(model, pairs, OWN)
    collator = PairCollator(model, tokens, chunks, rows=rows, packed=packed)
    return collator([{"pair_id": i} for i in range(ROWS)])


def gradients(model) -> torch.Tensor:
    parts = [
        (p.grad if p.grad is not None else torch.zeros_like(p)).flatten()
        for p in model.parameters()
    ]
    model.zero_grad()
    return torch.cat(parts)


def texts_of(world) -> list[str]:
    model, pairs, *_ = world
    anchors, positives = pair_texts(pairs[:ROWS], OWN, model.prompts)
    return anchors + positives


# Padded chunks; one packed row; packed rows of few texts, as for a gradient cache.
@pytest.mark.parametrize(("packed", "rows"), [(False, None), (True, None), (True, 3)])
def test_a_batch_is_the_single_padded_forward_in_loss_and_gradient(world, packed, rows):
    model, _, relations, shrinkage = world
    parameters = settings(method="reze_mic", weights="equal")
    loss = Objective(model.eval(), WIDTHS, parameters, relations, shrinkage)
    config = model[0].auto_model.config
    config.output_hidden_states = True
    try:
        batch = batch_of(world, 5, rows, packed=packed)
        assert (len(batch["chunks"]) == 1) == (packed and rows is None)
        with packing(model, on=packed):
            total, _ = loss(batch)
            total.backward()
        ours = gradients(model)
        features = model(model.preprocess(texts_of(world)))
    finally:
        config.output_hidden_states = False
    # The objective, written out on one padded batch of token ids.
    anchors, positives = features["sentence_embedding"].split(ROWS)
    nce, _ = nested_info_nce(anchors, positives, WIDTHS)
    hidden = list(features["all_layer_embeddings"][1:])
    align, _ = AlignmentLoss(WIDTHS)(hidden, features["attention_mask"])
    r0 = torch.from_numpy(relations["vectors"][:ROWS])
    source = torch.from_numpy(relations["source"][:ROWS]).long()
    distance = RezeLoss(shrinkage)(anchors, positives, r0, source)
    expected = nce + loss.gamma * align + loss.alpha * distance
    expected.backward()
    assert total.item() == pytest.approx(expected.item(), abs=1e-5)
    torch.testing.assert_close(ours, gradients(model), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_hidden_states_are_those_of_the_plain_backbone(world, packed):
    model = world[0].eval()
    encoder = model[0].auto_model
    batch = batch_of(world, 4, packed=packed)
    encoder.config.output_hidden_states = True
    with torch.no_grad(), packing(model, on=packed):
        outputs = forward_chunks(model, TokenInput(model), batch, [1, 2, 3], 3, None)
    encoder.config.output_hidden_states = False
    order = torch.argsort(batch["inverse"]).tolist()
    layout = token_layout(outputs.chunks)
    for layer, chunks in zip([1, 2, 3], outputs.hidden_states, strict=True):
        tokens = layout.gather(chunks)
        for row, text in enumerate(order):
            alone = model.tokenizer(
                texts_of(world)[text], return_tensors="pt", truncation=True, max_length=48
            )
            with torch.no_grad():
                states = encoder(**alone, output_hidden_states=True)
            torch.testing.assert_close(
                tokens[layout.sequence == row],
                states.hidden_states[layer][0],
                atol=1e-5,
                rtol=1e-5,
            )
            if layer == 3:
                assert torch.equal(states.hidden_states[3], states.last_hidden_state)


@pytest.mark.parametrize("world", ARCHITECTURES, indirect=True)
def test_every_method_trains_and_loads_in_plain_sentence_transformers(world, tmp_path):
    model, pairs, relations, shrinkage = world
    before = model.encode("lost card")
    for method in METHODS:
        trained, history, _ = train(
            model, pairs, OWN, relations, shrinkage,
            parameters=settings(method=method), widths=WIDTHS, seed=0,
        )  # fmt: skip
        assert (method in UNTRAINED) == history.empty
        folder = str(tmp_path / method)
        trained.save_pretrained(folder, create_model_card=False)
        after = trained.encode("lost card")
        np.testing.assert_allclose(
            SentenceTransformer(folder).encode("lost card"), after, atol=1e-6
        )
        assert (method == "reference") == bool(np.allclose(after, before))
    np.testing.assert_array_equal(model.encode("lost card"), before)


def test_mic_is_refused_where_embeddings_are_wider_than_hidden_states(tmp_path):
    from sentence_transformers.models import Dense

    model = tiny_family_model(tmp_path, "bert")
    model.insert(2, Dense(32, 48))
    world = make_world(model, make_pairs(24))
    run = {"widths": WIDTHS, "seed": 0}
    with pytest.raises(ParameterError, match=r"training\.method.*width 32.*width 48"):
        train(world[0], world[1], SPECS, *world[2:], parameters=settings(method="mic"), **run)
    train(world[0], world[1], SPECS, *world[2:], parameters=settings(method="reze"), **run)
