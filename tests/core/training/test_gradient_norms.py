from __future__ import annotations

from functools import partial

import pytest
import tiny_training
import torch
from tiny_training import SPECS, weights

from domain_embeddings.core.reporting.frames import loss_components
from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
from domain_embeddings.core.training.gradients import gradient_norms
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.trainer import PairTrainer

WIDTHS = [8, 32]
settings = partial(tiny_training.settings, logging_steps=2, chunks=2)
run = partial(tiny_training.run, widths=WIDTHS, logging_steps=2, chunks=2)
REZE_MIC = {
    "info_nce", "soft_collapse_corr", "soft_collapse_var", "isotropy_cv", "isotropy_unif", "reze",
}  # fmt: skip


def test_norms_are_those_of_the_terms_and_the_graph_stays():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    y = torch.tensor([1.0], requires_grad=True)
    terms = {"a": (x.square()).sum(), "b": 2 * y.sum(), "c": torch.tensor(1.0)}
    norms = gradient_norms(terms, [x])
    assert {name: value.item() for name, value in norms.items()} == {
        "gradient_norm_a": 10.0, "gradient_norm_b": 0.0, "gradient_norm_c": 0.0,
    }  # fmt: skip
    terms["a"].backward()
    assert x.grad.tolist() == [6.0, 8.0]


@pytest.mark.parametrize("layers", ["last", "middle"])
def test_every_weighted_term_is_measured_at_the_lowest_layer(world, layers):
    model, pairs, relations, shrinkage = world
    options = {"method": "reze_mic", "layers": layers, "gamma": 0.5, "lambda_corr": 10.0}
    loss = Objective(model.eval(), WIDTHS, settings(**options), relations, shrinkage)
    collator = PairCollator(model, tokenise_pairs(model, pairs, SPECS), 2)
    batch = collator([{"pair_id": i} for i in range(12)])
    config = model[0].auto_model.config
    config.output_hidden_states = loss.needs_all_layers()
    loss.measure_gradients = True
    states = []
    lowest = model[0].auto_model.encoder.layer[min(loss.layers) - 1]

    def keep(module, inputs, output):
        output = output[0] if isinstance(output, tuple) else output
        output.retain_grad()
        states.append(output)

    hook = lowest.register_forward_hook(keep)
    try:
        total, parts = loss(batch)
    finally:
        hook.remove()
        config.output_hidden_states = False
    names = {n.removeprefix("gradient_norm_") for n in parts if n.startswith("gradient_norm_")}
    assert names == REZE_MIC
    for state in states:
        state.grad = None  # A tensor that retains its gradient also keeps what was measured at it.
    total.backward()
    whole = torch.stack([state.grad.square().sum() for state in states]).sum().sqrt().item()
    norms = [parts[f"gradient_norm_{name}"].item() for name in REZE_MIC]
    # The terms add up to the total: their norms bound its norm, from above and from below.
    assert min(norms) > 0
    assert whole <= sum(norms) * (1 + 1e-5)
    assert whole >= (2 * max(norms) - sum(norms)) * (1 - 1e-5)
    double = settings(**options | {"gamma": 1.0, "alpha": 0.6})
    twice = Objective(model, WIDTHS, double, relations, shrinkage)
    twice.measure_gradients = True
    config.output_hidden_states = loss.needs_all_layers()
    again = twice(batch)[1]
    config.output_hidden_states = False
    for name in REZE_MIC:
        factor = 1 if name == "info_nce" else 2
        value = parts[f"gradient_norm_{name}"].item()
        assert again[f"gradient_norm_{name}"].item() == pytest.approx(factor * value, rel=1e-4)
    model.zero_grad()


def test_they_are_logged_once_and_change_nothing(world, monkeypatch):
    model, history, report = run(world, method="reze_mic")
    measured = history[history["component"].str.startswith("gradient_norm_")]
    assert set(measured["component"].str.removeprefix("gradient_norm_")) == REZE_MIC
    assert set(measured["step"]) == {2}
    assert len(measured) == len(REZE_MIC)
    assert set(report["gradient_norms"]) == REZE_MIC
    assert all(value > 0 for value in report["gradient_norms"].values())
    assert not any(name.startswith("gradient_norm_") for name in loss_components(history))
    monkeypatch.setattr(PairTrainer, "_first_of_first_log", lambda self: False)
    without, bare, _ = run(world, method="reze_mic")
    assert torch.equal(weights(model), weights(without))
    rest = history.drop(measured.index).reset_index(drop=True)
    assert rest.equals(bare)


def test_they_are_measured_although_fewer_steps_than_a_log_are_made(world):
    _, _, report = run(world, method="mrl", steps=1, logging_steps=5)
    assert set(report["gradient_norms"]) == {"info_nce"}


def test_they_change_nothing_where_activations_are_computed_again(world, monkeypatch):
    changes = {"method": "mic", "layers": "middle", "activation_checkpointing": True}
    model, _, report = run(world, **changes)
    assert set(report["gradient_norms"]) == REZE_MIC - {"reze"}
    monkeypatch.setattr(PairTrainer, "_first_of_first_log", lambda self: False)
    assert torch.equal(weights(model), weights(run(world, **changes)[0]))
