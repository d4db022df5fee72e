"""The same behaviour on every device: on the CPU always, on a GPU where there is one.

On the CPU these tests compare packed rows and chunks with one padded pass and bf16 with fp32. That
nothing is left behind on another device shows on a GPU only; the script benchmarks/gpu.sh runs them
there.
"""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from sentence_transformers import SentenceTransformer
from tiny_models import tiny_family_model, tiny_sentence_transformer
from tiny_training import SPECS, make_pairs, make_shrinkage, make_world
from torch import Tensor, nn

from domain_embeddings.core.encoders.batching import encode
from domain_embeddings.core.encoders.packing import packing
from domain_embeddings.core.encoders.relations import relation_vectors
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.rotation import rotate_start
from domain_embeddings.core.training.train import train, training_arguments
from domain_embeddings.core.training.trainer import PairTrainer
from domain_embeddings.parameters import TrainingParameters

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
WIDTHS = [4, 8, 16, 32]
# Everything an objective can consist of.
OBJECTIVES = {
    "plain": {"method": "plain"},
    "simcse": {"method": "simcse"},
    "ese": {"method": "ese"},
    "mrl": {"method": "mrl"},
    "mic": {"method": "mic", "layers": "all"},
    "reze": {"method": "reze", "reze_dims": "nested"},
    "reze_mic": {"method": "reze_mic", "layers": [1, 3]},
    "rotated": {"method": "reze_mic", "rotation": {"when": "init"}},
    "weighted": {"method": "mrl", "weights": [1.0, 1.0, 2.0, 4.0], "symmetric": True},
    "dynamic": {"method": "mrl", "weights": "dynamic"},
}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny model without dropout, which draws other numbers on every device."""
    model = tiny_sentence_transformer(tmp_path_factory.mktemp("model"), layers=3)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return make_world(model, make_pairs())


def settings(**changes) -> TrainingParameters:
    values = {
        "steps": 3, "batch_size": 12, "logging_steps": 1, "chunks": 4,
        "precision": "fp32", "device": "cpu", "rotation": {"when": "none"},
    }  # fmt: skip
    return TrainingParameters(**{**values, **changes})


def objective(world, **changes) -> Objective:
    """Return the objective as `train` builds it, on a copy of the model, on the CPU."""
    model, _, relations, shrinkage = world
    parameters = settings(**changes)
    model = copy.deepcopy(model)
    if parameters.rotation.when == "init":
        shrinkage = rotate_start(
            model, world[1], relations, shrinkage, parameters.rotation, widths=WIDTHS, seed=0
        )
    built = Objective(model, WIDTHS, parameters, relations, shrinkage).eval()
    model[0].auto_model.config.output_hidden_states = built.needs_all_layers()
    return built


def step(
    world, device: str, *, bf16: bool = False, chunks: int | None = None, measure: bool = False,
    **changes,
):  # fmt: skip
    """Return the components and the whole gradient of one batch, both on the CPU.

    The batch is a packed one, unless a number of padded chunks is given.
    """
    model, pairs, *_ = world
    loss = objective(world, **changes).to(device)
    loss.measure_gradients = measure
    tokens = tokenise_pairs(model, pairs, SPECS)
    packed = chunks is None
    collate = PairCollator(model, tokens, chunks or 1, loss.recipe.views, packed=packed)
    batch = send_to_device(collate([{"pair_id": i} for i in range(36)]), torch.device(device))
    with packing(loss.model, on=packed):
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            total, components = loss(batch)
        total.backward()
    gradients = [p.grad for p in loss.parameters() if p.grad is not None]
    assert {value.device.type for value in (*components.values(), *gradients)} == {device}
    assert all(value.dtype == torch.float32 for value in components.values())
    gradient = torch.cat([value.detach().cpu().flatten() for value in gradients])
    return {name: value.item() for name, value in components.items()}, gradient


@pytest.mark.parametrize("chunks", [None, 4])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_batches_on_any_device_equal_one_padded_pass_on_the_cpu(world, device, name, chunks):
    expected, slope = step(world, "cpu", chunks=1, measure=True, **OBJECTIVES[name])
    found, gradient = step(world, device, chunks=chunks, measure=True, **OBJECTIVES[name])
    assert found == pytest.approx(expected, abs=1e-4, rel=1e-4)
    assert slope.norm() > 1e-3
    torch.testing.assert_close(gradient, slope, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_bf16_on_any_device_is_fp32_on_the_cpu_but_for_rounding(world, device, name):
    expected, slope = step(world, "cpu", **OBJECTIVES[name])
    found, gradient = step(world, device, bf16=True, **OBJECTIVES[name])
    assert found == pytest.approx(expected, abs=0.05, rel=0.05)
    assert found != expected, "nothing was computed in bf16"
    assert torch.cosine_similarity(gradient, slope, dim=0) > 0.98


@pytest.mark.parametrize("family", ["bert", "bge_m3", "modernbert", "qwen3"])
def test_encoding_on_any_device_equals_the_library_on_the_cpu(device, family, tmp_path):
    model = tiny_family_model(tmp_path, family)
    pairs = make_pairs(30)
    texts = [*pairs["anchor"], *pairs["positive"]]
    expected = model.encode(texts, normalize_embeddings=True)
    found = encode(model.to(device), texts, batch_tokens=128, show_progress=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_tensor_of_an_objective_follows_it_to_its_device(world, name):
    loss = objective(world, **OBJECTIVES[name])
    assert list(strays(loss)) == []
    assert {p.device.type for p in (*loss.to("meta").parameters(), *loss.buffers())} == {"meta"}


def strays(value, path="objective", seen=None):
    """Yield the tensors that are kept in plain attributes, where `to` does not find them."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strays(item, f"{path}.{key}", seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strays(item, path, seen)
    elif isinstance(value, nn.Module):
        hidden = {"_parameters", "_buffers"}
        for key, item in vars(value).items():
            if key not in hidden:
                yield from strays(item, f"{path}.{key}", seen)
    elif type(value).__module__.startswith("domain_embeddings") and hasattr(value, "__dict__"):
        yield from strays(vars(value), path, seen)


def test_a_tensor_that_would_stay_behind_is_found(world):
    loss = objective(world, method="mrl")
    loss.tokens.forgotten = [torch.zeros(1)]
    assert list(strays(loss)) == ["objective.tokens.forgotten"]


def test_the_loader_of_the_trainer_gives_nested_batches_of_one_device(world, device, tmp_path):
    from datasets import Dataset

    model, pairs, *_ = world
    loss = objective(world, method="mrl")
    trainer = PairTrainer(
        model=loss.model,
        args=training_arguments(settings(device=device), 0, str(tmp_path)),
        train_dataset=Dataset.from_dict({"pair_id": np.arange(len(pairs))}),
        loss=loss,
        data_collator=PairCollator(model, tokenise_pairs(model, pairs, SPECS), 4),
    )
    batch = next(iter(trainer.get_train_dataloader()))
    tensors = [value for value in batch.values() if isinstance(value, Tensor)]
    chunks = batch["chunks"]
    assert isinstance(chunks, list) and 1 < len(chunks) <= 4
    tensors += [value for chunk in chunks for value in chunk.values()]
    assert {value.device.type for value in tensors} == {device}
    assert {p.device.type for p in loss.parameters()} == {device}


@pytest.mark.parametrize(
    "choice",
    [("mrl", "none", "bf16"), ("mic", "init", "fp32"), ("reze_mic", "both", "bf16")],
    ids="-".join,
)
def test_training_on_any_device_saves_a_model_that_loads_on_the_cpu(
    world, device, choice, tmp_path
):
    model, pairs, relations, shrinkage = world
    method, when, precision = choice
    parameters = settings(
        method=method, rotation={"when": when}, precision=precision, device=device
    )
    adapted, history, report = train(
        model, pairs, SPECS, relations, shrinkage, parameters=parameters, widths=WIDTHS, seed=0
    )
    assert torch.device(report["device"]).type == device
    assert report["precision"] == precision
    assert ("peak_gpu_memory_mib" in report) == (device == "cuda")
    assert {t.device.type for t in (*adapted.parameters(), *adapted.buffers())} == {device}
    assert {p.dtype for p in adapted.parameters()} == {torch.float32}
    assert np.isfinite(history["value"]).all()
    adapted.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    loaded = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = pairs["anchor"].tolist()
    there = encode(adapted, texts, show_progress=False)
    np.testing.assert_allclose(encode(loaded, texts, show_progress=False), there, atol=1e-5)
    assert np.abs(there - encode(model, texts, show_progress=False)).max() > 1e-3


@needs_cuda
@pytest.mark.parametrize("method", ["plain", "mrl", "mic", "reze", "reze_mic"])
@pytest.mark.parametrize(("reference", "training"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_where_the_reference_was_loaded_does_not_matter(world, reference, training, method):
    model, pairs, _, shrinkage = world
    moved = copy.deepcopy(model).to(reference)
    # The vectors, too, are made where the reference is.
    streamed = relation_vectors(moved, pairs, SPECS, batch_tokens=512, dtype="float32")
    vectors = np.concatenate(list(streamed.arrays["vectors"].blocks))
    relations = dataclasses.replace(
        streamed, arrays={"vectors": vectors, "source": streamed["source"]}
    )
    np.testing.assert_allclose(vectors, world[2]["vectors"], atol=1e-4)
    shrinkage = make_shrinkage(streamed.header)
    losses = []
    for source, place in ((moved, training), (model, "cpu")):
        _, history, report = train(
            source, pairs, SPECS, relations, shrinkage, widths=WIDTHS, seed=0,
            parameters=settings(method=method, device=place, rotation={"when": "both"}),
        )  # fmt: skip
        assert torch.device(report["device"]).type == place
        losses.append(history[history["component"] == "loss"]["value"].to_numpy())
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
