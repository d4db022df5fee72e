"""What makes large models and large batches fit: adapters, accumulation, checkpointing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from tiny_models import tiny_family_model, tiny_sentence_transformer
from tiny_training import SPECS, make_pairs, make_world
from transformers import TrainerCallback

from domain_embeddings.core.encoders.loading import load_encoder
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.gradient_cache import at_most
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.train import checkpoint_layers, train, training_arguments
from domain_embeddings.core.training.trainer import PairTrainer
from domain_embeddings.parameters import TrainingParameters

WIDTHS = [8, 16, 32]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return make_world(tiny_sentence_transformer(folder, layers=3), make_pairs(40))


def settings(**changes) -> TrainingParameters:
    values = {"steps": 2, "batch_size": 8, "logging_steps": 1, "precision": "fp32", "chunks": 4}
    return TrainingParameters(**{**values, "device": "cpu", **changes})


def run(world, **changes):
    model, pairs, relations, shrinkage = world
    return train(
        model, pairs, SPECS, relations, shrinkage,
        parameters=settings(**changes), widths=WIDTHS, seed=0,
    )  # fmt: skip


def objective(world, **changes) -> tuple[Objective, PairCollator]:
    model, pairs, relations, shrinkage = world
    collator = PairCollator(model, tokenise_pairs(model, pairs, SPECS), 4)
    return Objective(model, WIDTHS, settings(**changes), relations, shrinkage), collator


def gradient_of(loss, batch) -> torch.Tensor:
    loss.zero_grad()
    loss(batch)[0].backward()
    return gradient(loss.model)


def gradient(model) -> torch.Tensor:
    return torch.cat(
        [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


def test_lora_changes_only_the_weights_of_its_layers_and_leaves_a_plain_model(world, tmp_path):
    lora = {"rank": 4, "modules": ["query", "value"], "dropout": 0.1}
    changes = {"rotation": {"when": "none"}, "activation_checkpointing": True}
    model, _, report = run(world, lora=lora, learning_rate=1e-2, **changes)
    before = world[0].state_dict()
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert list(model.state_dict()) == list(before)
    assert len(changed) == 3 * 2
    assert all(name.endswith(("query.weight", "value.weight")) for name in changed)
    assert report["trained_parameters"] == 3 * 2 * 4 * (32 + 32)
    assert report["parameters"] > 10 * report["trained_parameters"]
    folder = tmp_path / "plain"
    model.save_pretrained(str(folder), create_model_card=False)
    assert not list(folder.glob("adapter*"))
    loaded = SentenceTransformer(str(folder))
    np.testing.assert_allclose(loaded.encode("lost card"), model.encode("lost card"), atol=1e-6)


def test_adapters_are_merged_before_the_final_rotation(world):
    model, *_ = run(world, lora={"rank": 2}, rotation={"when": "both"})
    assert not any("lora" in name for name in model.state_dict())
    assert [type(module).__name__ for module in model][-3:] == ["Normalize", "Dense", "Normalize"]


def test_without_lora_everything_counts_as_trained(world):
    _, _, report = run(world, method="mrl", rotation={"when": "none"})
    assert report["trained_parameters"] == report["parameters"]
    assert report["parameters"] == sum(p.numel() for p in world[0].parameters())


class KeepGradient(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.seen.append(gradient(model))


def test_an_accumulated_step_takes_the_mean_gradient_of_its_batches(world, tmp_path):
    model = load_encoder(_without_dropout(world[0], tmp_path))
    loss, collator = objective((model, *world[1:]), method="reze_mic")
    arguments = training_arguments(settings(steps=1, accumulation=3), 0, str(tmp_path))
    arguments.max_grad_norm = 0.0
    keep = KeepGradient()
    trainer = PairTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict({"pair_id": range(40)}),
        loss=loss, data_collator=collator, callbacks=[keep],
    )  # fmt: skip
    batches = list(trainer.get_train_dataloader())[:3]
    expected = torch.stack([gradient_of(loss, batch) for batch in batches]).mean(dim=0)
    loss.zero_grad()
    trainer.train()
    assert len(keep.seen) == 1
    torch.testing.assert_close(keep.seen[0], expected, atol=1e-6, rtol=1e-4)


def test_accumulated_batches_are_counted(world):
    _, history, report = run(world, accumulation=2)
    assert history["step"].max() == 2
    assert sum(task["drawn"] for task in report["sampling"]) == 2 * 2 * 8
    assert report["epochs"] == pytest.approx(2 * 2 * 8 / 40)


@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3"])
def test_checkpointed_layers_give_the_same_loss_and_gradient_with_dropout(tmp_path, family):
    model = tiny_family_model(tmp_path, family)
    encoder = model[0].auto_model
    encoder.config.output_hidden_states = True
    world = make_world(model, make_pairs(12))
    loss, collator = objective(world, method="reze_mic", layers=[1, 2])
    batch = collator([{"pair_id": i} for i in range(8)])
    calls: list[int] = []
    (inner,) = (m for n, m in encoder.named_modules() if n.endswith((".0.mlp", ".0.intermediate")))
    inner.register_forward_pre_hook(lambda *_: calls.append(1))
    model.train()
    results = []
    for seed, checkpointed in ((0, False), (0, True), (1, True)):
        if checkpointed:
            checkpoint_layers(encoder)
        calls.clear()
        torch.manual_seed(seed)
        results.append((gradient_of(loss, batch), len(calls)))
        encoder.activation_checkpointing_disable()
    (plain, once), (again, twice), (other, _) = results
    torch.testing.assert_close(again, plain, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(other, plain, atol=1e-3)
    assert twice == 2 * once == 2 * len(batch["chunks"])


def test_checkpointing_trains_to_the_same_bits_and_is_off_afterwards(world):
    plain, *_ = run(world, layers=[2])
    model, *_ = run(world, layers=[2], activation_checkpointing=True)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], atol=1e-6, rtol=1e-5)
    assert not model[0].auto_model.is_activation_checkpointing


def test_a_backbone_that_cannot_be_checkpointed_is_refused(world, monkeypatch):
    monkeypatch.setattr(type(world[0][0].auto_model), "supports_gradient_checkpointing", False)
    with pytest.raises(ParameterError, match=r"training\.activation_checkpointing.*allowed: false"):
        run(world, activation_checkpointing=True)


def _without_dropout(model, folder) -> str:
    """Save a copy of a model whose dropout is 0."""
    path = str(folder / "still")
    model.save_pretrained(path)
    still = SentenceTransformer(path)
    still[0].auto_model.config.hidden_dropout_prob = 0.0
    still[0].auto_model.config.attention_probs_dropout_prob = 0.0
    still.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("method", "bf16"),
    [("simcse", False), ("ese", False), ("reze_mic", False), ("reze_mic", True)],
)
def test_a_gradient_cache_gives_the_loss_and_gradient_of_the_batch_with_dropout(
    world, method, bf16
):
    model, pairs, relations, shrinkage = world
    tokenised = tokenise_pairs(model, pairs, SPECS)
    changes = {"method": method, "layers": [2, 3], "reze_dims": "nested"}
    plain = Objective(model, WIDTHS, settings(**changes), relations, shrinkage)
    cached = Objective(model, WIDTHS, settings(**changes, gradient_cache=3), relations, shrinkage)
    # The same chunks, so that dropout draws the same numbers.
    collator = PairCollator(model, tokenised, 4, views=method == "simcse", rows=3)
    batch = collator([{"pair_id": i} for i in range(12)])
    cached.measure_gradients = True
    assert max(len(chunk["input_ids"]) for chunk in batch["chunks"]) == 3
    inner = model[0].auto_model.encoder.layer[0].intermediate
    encoder = model[0].auto_model
    encoder.config.output_hidden_states = True
    calls: list[int] = []
    hook = inner.register_forward_pre_hook(lambda *_: calls.append(1))
    model.train()
    try:
        results = []
        for loss, seed in ((plain, 0), (cached, 0), (cached, 1)):
            calls.clear()
            loss.zero_grad()
            torch.manual_seed(seed)
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                total, parts = loss(batch)
            total.backward()
            after = torch.rand(1)
            results.append((total.item(), gradient(model), len(calls), after, parts))
    finally:
        hook.remove()
        encoder.config.output_hidden_states = False
        model.eval()
    (total, expected, once, after, parts), second, third = results
    assert second[0] == pytest.approx(total, abs=1e-6)
    torch.testing.assert_close(second[1], expected, atol=1e-6, rtol=1e-5)
    assert second[2] == 2 * once == 2 * len(batch["chunks"])
    assert second[3] == after, "the second pass moves the random numbers of later steps"
    assert set(second[4]) == set(parts)
    for name, value in parts.items():
        torch.testing.assert_close(second[4][name], value, atol=1e-6, rtol=1e-4)
    assert not torch.allclose(third[1], expected, atol=1e-3), "dropout was off"


def test_a_gradient_cache_keeps_the_activations_of_one_chunk_only(world):
    model, pairs, relations, shrinkage = world
    kept = {}
    for rows in (None, 2):
        parameters = settings(method="mrl", gradient_cache=rows)
        loss = Objective(model, WIDTHS, parameters, relations, shrinkage)
        collator = PairCollator(model, tokenise_pairs(model, pairs, SPECS), 1, rows=rows)
        batch = collator([{"pair_id": i} for i in range(20)])
        sizes: dict[int, int] = {}

        def count(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        weights = {p.untyped_storage().data_ptr() for p in loss.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss(batch)
        kept[rows] = sum(size for place, size in sizes.items() if place not in weights)
    assert kept[2] < kept[None] / 5


def test_a_gradient_cache_trains_with_everything_else_to_the_same_weights(world):
    changes = {"layers": [2], "accumulation": 2, "lora": {"rank": 2}, "rotation": {"when": "init"}}
    plain, _, first = run(world, **changes)
    # Chunks of more rows than there are stay as they were.
    model, _, second = run(world, **changes, gradient_cache=100, activation_checkpointing=True)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], atol=1e-6, rtol=1e-5)
    assert first["padding_ratio"] == second["padding_ratio"]


@pytest.mark.parametrize("rows", [1, 3, 50, None])
def test_chunks_are_split_to_a_number_of_rows_and_keep_their_order(rows):
    parts = [np.arange(7), np.arange(7, 8), np.arange(8, 20)]
    split = at_most(parts, rows)
    assert np.concatenate(split).tolist() == list(range(20))
    assert max(map(len, split)) <= (rows or 12)
    if rows in (50, None):
        assert [part.tolist() for part in split] == [part.tolist() for part in parts]


def test_a_gradient_cache_does_not_go_with_shared_weights():
    with pytest.raises(ValueError, match=r"launch\.fsdp: needs .*gradient_cache: null"):
        settings(gradient_cache=8, chunks=1, launch={"processes": 2, "fsdp": True})
