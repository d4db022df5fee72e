"""Centred starts, and averaging with the reference."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tiny_models import tiny_sentence_transformer
from tiny_training import SPECS, make_pairs, make_world

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.interpolation import interpolate
from domain_embeddings.core.encoders.relations import pair_texts
from domain_embeddings.core.encoders.rotation import find_rotation, rotate_model
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.training import rotation as rotations
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.rotation import rotate_start, turn
from domain_embeddings.core.training.train import train
from domain_embeddings.parameters import RezeParameters, RotationParameters, TrainingParameters
from domain_embeddings.pipelines.reze import nodes

WIDTHS = [8, 32]
CENTRED = RotationParameters(when="init", centre=True)


def shrink(relations: Bundle, **changes) -> Bundle:
    """Run the stage reze."""
    reze = RezeParameters(**changes)
    moments = nodes.accumulate_moments(relations, reze)
    eigenspace = nodes.decompose(moments, reze)
    variance = nodes.measure_task_variance(moments, eigenspace, reze)
    return nodes.fit_shrinkage(eigenspace, variance, reze)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    model = tiny_sentence_transformer(tmp_path_factory.mktemp("model"))
    model, pairs, relations, _ = make_world(model, make_pairs())
    return model, pairs, relations, shrink(relations)


def settings(**changes) -> TrainingParameters:
    values = {"steps": 2, "batch_size": 12, "logging_steps": 1, "precision": "fp32", "chunks": 2}
    return TrainingParameters(**{**values, "device": "cpu", **changes})


def run(world, **changes):
    return train(
        *world[:2], SPECS, *world[2:], parameters=settings(**changes), widths=WIDTHS, seed=0
    )


def rotated_start(model, world, shrinkage, rotation=CENTRED, **changes):
    """Rotate a model into the basis of its own embeddings of the world's pairs."""
    _, pairs, relations, _ = world
    options = {"widths": WIDTHS, "seed": 0, **changes}
    return rotate_start(model, pairs, relations, shrinkage, rotation, **options)


def by_hand(vectors, basis, mean):
    halves = [(half - mean) @ basis for half in np.split(vectors.astype(np.float64), 2, axis=1)]
    return np.hstack([half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves])


def test_a_centred_start_embeds_what_the_stored_vectors_are_turned_into(world, tmp_path):
    from sentence_transformers import SentenceTransformer

    model, pairs, relations, shrinkage = world
    start = copy.deepcopy(model)
    moved = rotated_start(start, world, shrinkage)
    expected = by_hand(relations["vectors"], moved["rotation"], moved["centre"])
    assert np.abs(moved["centre"]).max() > 0.01
    start.save_pretrained(str(tmp_path / "start"))
    for encoder in (start, SentenceTransformer(str(tmp_path / "start"))):
        anchors, positives = pair_texts(pairs, SPECS, model.prompts)
        both = [encode(encoder, texts, show_progress=False) for texts in (anchors, positives)]
        np.testing.assert_allclose(np.hstack(both), expected, atol=1e-5)


@pytest.mark.parametrize("mode", ["translate", "scale"])
def test_the_shrinkage_of_a_centred_start_is_that_of_the_turned_vectors(world, mode, monkeypatch):
    model, _, relations, _ = world
    options = {"shrinkage": mode, "rho": 0.9, "gamma": 0.5, "eta": 0.4}
    monkeypatch.setattr(rotations, "BLOCK_ROWS", 7)
    moved = rotated_start(copy.deepcopy(model), world, shrink(relations, **options))
    turned = by_hand(relations["vectors"], moved["rotation"], moved["centre"])
    expected = shrink(Bundle({**relations.arrays, "vectors": turned}, relations.header), **options)
    assert moved["basis"].shape[1] > 0
    assert moved.header == expected.header
    for name in expected.arrays:
        np.testing.assert_allclose(moved[name], expected[name], atol=1e-8, err_msg=name)


def test_the_objective_reads_references_in_the_centred_basis(world):
    model, pairs, relations, shrinkage = world
    start = copy.deepcopy(model).eval()
    moved = rotated_start(start, world, shrinkage)
    empty = {
        "basis": np.zeros((64, 0)), "offset": np.zeros((3, 0)), "scale": np.ones((3, 0)),
    }  # fmt: skip
    still = Bundle({**moved.arrays, **empty}, moved.header)
    loss = Objective(start, WIDTHS, settings(method="reze"), relations, still)
    batch = PairCollator(start, tokenise_pairs(start, pairs, SPECS), 2)(
        [{"pair_id": i} for i in range(12)]
    )
    # The start is its own reference; were one of them not centred, they would differ.
    assert loss(batch)[1]["reze"].item() == pytest.approx(0, abs=1e-6)
    loss.centre = None
    assert loss(batch)[1]["reze"].item() > 1e-3


def test_turning_leaves_a_vector_at_the_mean_without_direction():
    mean = np.array([0.6, 0.8])
    turned = turn(np.hstack([mean, -mean])[None], np.eye(2), mean)
    np.testing.assert_allclose(turned, [[0, 0, -0.6, -0.8]], atol=1e-12)


def test_a_shrinkage_that_does_not_say_how_it_was_made_is_refused(world):
    model, _, _, shrinkage = world
    header = {key: value for key, value in shrinkage.header.items() if key != "rho"}
    bare = Bundle(shrinkage.arrays, header)
    with pytest.raises(DataError, match=r"\(rho\).*from the stage 'reze'"):
        rotated_start(copy.deepcopy(model), world, bare)
    rotated_start(copy.deepcopy(model), world, bare, reze=False)


@pytest.mark.parametrize("when", ["init", "both"])
def test_a_centred_start_trains_and_loads_anywhere(world, when, tmp_path):
    from sentence_transformers import SentenceTransformer

    model, history, _ = run(world, method="reze_mic", rotation={"when": when, "centre": True})
    assert np.isfinite(history["value"]).all()
    model.save_pretrained(str(tmp_path / when))
    loaded = SentenceTransformer(str(tmp_path / when))
    np.testing.assert_allclose(loaded.encode("lost card"), model.encode("lost card"), atol=1e-6)


def same(one, two) -> bool:
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return all(torch.equal(p, q) for p, q in pairs)


def test_all_of_the_trained_model_is_the_trained_model_and_none_the_reference(world):
    plain = {"method": "mrl", "rotation": {"when": "none"}}
    trained, _, _ = run(world, **plain)
    assert same(run(world, interpolate=1.0, **plain)[0], trained)
    assert not same(trained, world[0])
    assert same(run(world, interpolate=0.0, **plain)[0], world[0])
    half = run(world, interpolate=0.5, **plain)[0]
    for p, q, r in zip(half.parameters(), trained.parameters(), world[0].parameters(), strict=True):
        assert torch.allclose(p, (q + r) / 2, atol=1e-7)


@pytest.mark.parametrize("centre", [False, True])
def test_none_of_a_rotated_model_is_the_reference_in_its_basis(world, centre):
    model, _, _, shrinkage = world
    rotation = RotationParameters(when="init", centre=centre)
    start = copy.deepcopy(model)
    rotated_start(start, world, shrinkage, rotation)
    back, _, _ = run(
        world, method="reze", interpolate=0.0, rotation=rotation.model_dump(mode="json")
    )
    assert same(back, start)


def test_a_rotation_that_the_reference_already_has_stays_that_of_the_model(world):
    reference = copy.deepcopy(world[0])
    bases = [np.linalg.qr(np.random.default_rng(k).normal(size=(32, 32)))[0] for k in range(2)]
    rotate_model(reference, bases[0], np.zeros(32))
    model = copy.deepcopy(reference)
    rotate_model(model, bases[1], np.zeros(32))
    before = find_rotation(model).linear.weight.clone()
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    interpolate(model, reference, 0.25)
    assert torch.equal(find_rotation(model).linear.weight, before)
    moved = next(model.parameters()) - next(reference.parameters())
    assert torch.allclose(moved, torch.full_like(moved, 0.25), atol=1e-6)


def test_models_with_other_weights_are_not_averaged(world, tmp_path):
    with pytest.raises(ValueError, match="weights differ"):
        interpolate(tiny_sentence_transformer(tmp_path, layers=1), world[0], 0.5)
