"""Options of the objective: widths, their weights, layers, warm-up."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tiny_training
import torch
from tiny_training import batch_of, settings, weights

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.losses.info_nce import nested_info_nce
from domain_embeddings.core.losses.spectral_isotropy import spectral_isotropy
from domain_embeddings.core.losses.tokens import masked_mean
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.schedule import draw_widths
from domain_embeddings.core.training.trainer import PairTrainer
from domain_embeddings.parameters import check_parameters

WIDTHS = [4, 16, 32]
run = partial(tiny_training.run, widths=WIDTHS)
objective = partial(tiny_training.objective, widths=WIDTHS)


def components(world, step=0, **changes) -> dict[str, float]:
    loss = objective(world, **changes)
    loss.step = step
    config = loss.model[0].auto_model.config
    config.output_hidden_states = True
    try:
        _, parts = loss(batch_of(world)[0])
    finally:
        config.output_hidden_states = False
    return {name: value.item() for name, value in parts.items()}


def by_component(history, name):
    return history[history["component"] == name].set_index("step")["value"]


def test_symmetric_is_the_mean_of_both_directions(world):
    loss = objective(world, method="plain")
    batch = batch_of(world)[0]
    with torch.no_grad():
        one = loss(batch)[1]["info_nce"].item()
        both = objective(world, method="plain", symmetric=True)(batch)[1]["info_nce"].item()
        x = torch.tensor(loss.model.encode(_texts(world, batch)))
        rows = len(batch["pair_id"])
        anchors, positives = x[:rows], x[rows : 2 * rows]
    assert both != pytest.approx(one, abs=1e-3)
    # No two pairs of different rows may be masked for the plain oracle to hold.
    mask = _mask(batch)
    back, _ = nested_info_nce(positives, anchors, [32], mask=mask.T)
    assert 2 * both - one == pytest.approx(back.item(), abs=1e-4)


def _texts(world, batch):
    _, pairs, *_ = world
    chosen = pairs.iloc[batch["pair_id"].numpy()]
    prompts = np.where(chosen["task"] == "faq", "fast ", "")
    return [*(prompts + chosen["anchor"].to_numpy()), *chosen["positive"]]


def _mask(batch):
    from domain_embeddings.core.losses.info_nce import false_negative_mask

    rows = len(batch["pair_id"])
    ids = batch["text_id"]
    mask, _ = false_negative_mask(
        ids[:rows], ids[rows : 2 * rows], labels=batch["label"], task_ids=batch["task"]
    )
    return mask


def test_drawn_widths_are_those_of_the_step_in_every_nested_term(world):
    changes = {"method": "reze_mic", "reze_dims": "nested", "widths_per_step": 2}
    for step in (0, 1, 5):
        drawn = components(world, step, **changes)
        model, _, relations, shrinkage = world
        chosen = [WIDTHS[k] for k in draw_widths(3, 2, 0, step)]
        only = Objective(
            model.eval(), chosen, settings(method="reze_mic", reze_dims="nested"), relations,
            shrinkage,
        )  # fmt: skip
        _, expected = only(batch_of(world)[0])
        for name in ("info_nce", "soft_collapse_corr", "isotropy_unif", "reze", "loss"):
            assert drawn[name] == pytest.approx(expected[name].item(), abs=1e-6), name


def test_training_draws_by_seed_and_step(world, monkeypatch):
    import domain_embeddings.core.training.objective as module

    seen = []

    def spy(count, drawn, seed, step):
        seen.append((count, drawn, seed, step))
        return draw_widths(count, drawn, seed, step)

    monkeypatch.setattr(module, "draw_widths", spy)
    run(world, seed=5, method="mrl", widths_per_step=2)
    assert seen == [(3, 2, 5, 0), (3, 2, 5, 1), (3, 2, 5, 2)]


def test_all_widths_drawn_is_the_default_bit_for_bit(world):
    every = weights(run(world, method="mrl", widths_per_step=3)[0])
    assert torch.equal(every, weights(run(world, method="mrl")[0]))
    assert not torch.equal(every, weights(run(world, method="mrl", widths_per_step=2)[0]))


def test_pairs_tie_the_kth_width_to_the_kth_layer(world):
    layers = [3, 1, 2]
    tied = components(world, method="mic", mapping="pairs", layers=layers)
    model = world[0]
    batch = batch_of(world, chunks=1)[0]
    states = model[0].auto_model(**batch["chunks"][0], output_hidden_states=True).hidden_states
    mask = batch["chunks"][0]["attention_mask"]
    pooled = [masked_mean(states[layer], mask) for layer in layers]
    expected = [
        spectral_isotropy(z, [width]).cv.item() for z, width in zip(pooled, WIDTHS, strict=True)
    ]
    assert tied["isotropy_cv"] == pytest.approx(np.mean(expected), abs=1e-6)
    grid = components(world, method="mic", layers=layers)["isotropy_cv"]
    assert tied["isotropy_cv"] != pytest.approx(grid, abs=1e-4)


def test_pairs_follow_the_drawn_widths(world):
    changes = {"method": "mic", "mapping": "pairs", "layers": [1, 2, 3], "widths_per_step": 2}
    for step in (0, 1, 5):
        chosen = draw_widths(3, 2, 0, step)
        drawn = components(world, step, **changes)
        model, _, relations, shrinkage = world
        only = Objective(
            model.eval(), [WIDTHS[k] for k in chosen],
            settings(method="mic", mapping="pairs", layers=[k + 1 for k in chosen]),
            relations, shrinkage,
        )  # fmt: skip
        model[0].auto_model.config.output_hidden_states = True
        expected = only(batch_of(world)[0])[1]["align"].item()
        model[0].auto_model.config.output_hidden_states = False
        assert drawn["align"] == pytest.approx(expected, abs=1e-6)


def test_pairs_of_other_numbers_are_refused_with_the_reason(world):
    with pytest.raises(ParameterError, match=r"training\.mapping: .*1 layers \[3\] for 3 widths"):
        run(world, method="mic", mapping="pairs", layers="last")
    run(world, method="mic", mapping="pairs", layers="all")
    with pytest.raises(ParameterError, match=r"training\.mapping: .*\(2\), got 1; allowed: grid"):
        check_parameters({"widths": [4, 8], "training": {"mapping": "pairs", "layers": [6]}})


def test_more_drawn_widths_than_there_are_is_refused(world):
    with pytest.raises(ParameterError, match=r"training\.widths_per_step: 4 of .*1 to 3"):
        run(world, widths_per_step=4)


def test_learned_weights_are_trained_logged_and_not_decayed(world):
    model, history, _ = run(world, method="mrl", weights="dynamic", steps=6, warmup_ratio=0.0)
    logged = {width: by_component(history, f"width_weight_{width}") for width in WIDTHS}
    assert all(values.loc[1] == pytest.approx(1 / 3) for values in logged.values())
    assert sum(values.loc[6] for values in logged.values()) == pytest.approx(1)
    info = by_component(history, "info_nce")
    assert by_component(history, "loss").loc[1] == pytest.approx(info.loc[1])
    assert all(values.loc[6] != pytest.approx(1 / 3, abs=1e-6) for values in logged.values())
    assert not any("log_variance" in name for name, _ in model.named_parameters())


def test_the_optimiser_has_learned_weights_without_decay_and_at_their_own_rate(world, monkeypatch):
    groups = []

    def keep(self, *arguments):
        optimiser = PairTrainer.__mro__[1].create_optimizer(self, *arguments)
        groups.extend(
            (group["weight_decay"], group["initial_lr"] if "initial_lr" in group else group["lr"])
            for group in optimiser.param_groups
            if any(p is self.pair_objective.weighting.log_variance for p in group["params"])
        )
        return optimiser

    monkeypatch.setattr(PairTrainer, "create_optimizer", keep, raising=False)
    run(world, method="mrl", weights="dynamic", weight_decay=0.5, learning_rate=1e-3)
    assert groups == [(0.0, pytest.approx(0.1))]


def test_the_warm_up_raises_gamma_and_alpha_and_nothing_else(world):
    changes = {"method": "reze_mic", "regulariser_warmup": 1.0, "steps": 4, "gamma": 0.5}
    for step, factor in ((0, 0.0), (1, 0.25), (3, 0.75)):
        parts = components(world, step, **changes)
        expected = parts["info_nce"] + factor * (0.5 * parts["align"] + 0.3 * parts["reze"])
        assert parts["loss"] == pytest.approx(expected, abs=1e-6)
    assert torch.equal(
        weights(run(world, method="reze_mic", regulariser_warmup=0.0)[0]),
        weights(run(world, method="reze_mic")[0]),
    )
