from __future__ import annotations

import copy
import shutil

import numpy as np
import pytest
import task_data
import torch
from tiny_models import tiny_sentence_transformer
from tiny_training import SPECS, make_pairs, make_world

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.training.dev import DevScorer, DevSelection
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.rotation import rotate_end
from domain_embeddings.core.training.train import train
from domain_embeddings.parameters import (
    EvaluationParameters,
    Parameters,
    TrainingParameters,
    check_parameters,
)
from domain_embeddings.pipelines.evaluation import nodes as evaluation_nodes

WIDTHS = [4, 8, 16, 32]
TYPES = ("classification", "pair_classification")
EVALUATION = EvaluationParameters(
    split="dev",
    bootstrap=5,
    fit_pairs=6,
    transforms=["none"],
    precisions=["float32"],
    store=None,
    classification={"samples_per_label": 4, "experiments": 2},
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    model = tiny_sentence_transformer(tmp_path_factory.mktemp("model"))
    return make_world(model, make_pairs())


@pytest.fixture(scope="module")
def dev_tasks():
    records = task_data.records(24)
    records["split"] = records["split"].replace("test", "dev")
    return records[records["task"].isin(TYPES)]


def specs():
    return [*({**spec, "uses": ["train"]} for spec in SPECS), *task_data.specs(*TYPES)]


def settings(**changes) -> TrainingParameters:
    values = {
        "steps": 4, "batch_size": 12, "logging_steps": 1, "precision": "fp32", "device": "cpu",
        "method": "mrl", "rotation": {"when": "none"},
    }  # fmt: skip
    return TrainingParameters(**{**values, **changes})


def run(world, dev_tasks, root=None, task_specs=None, evaluation=EVALUATION, **changes):
    model, pairs, relations, shrinkage = world
    return train(
        model, pairs, task_specs or specs(), relations, shrinkage, parameters=settings(**changes),
        widths=WIDTHS, seed=0, dev_tasks=dev_tasks, evaluation=evaluation, checkpoint_root=root,
    )  # fmt: skip


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def scripted(monkeypatch, values):
    """Let the scorer return given scores; collect the weights that it was asked about."""
    seen = []

    def score(_self, model):
        seen.append(weights(model).clone())
        return {4: values[len(seen) - 1] - 0.1, 8: values[len(seen) - 1] + 0.1}

    monkeypatch.setattr(DevScorer, "score", score)
    return seen


def scorer(world, dev_tasks, **changes) -> DevScorer:
    return DevScorer.build(
        dev_tasks, specs(), world[1], settings(**changes), EVALUATION, widths=WIDTHS, seed=3
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_scoring_does_not_disturb_training(world, dev_tasks, monkeypatch, precision):
    monkeypatch.setattr(DevSelection, "restore", lambda *_: None)
    plain, history, _ = run(world, dev_tasks, precision=precision)
    scored, longer, report = run(world, dev_tasks, precision=precision, dev={"every": 1})
    assert report["dev"]["scores"] == 4
    assert torch.equal(weights(plain), weights(scored))
    own = longer[~longer["component"].str.startswith("dev_")].reset_index(drop=True)
    assert own.equals(history)


def test_the_best_weights_outlive_an_interruption(world, dev_tasks, monkeypatch, tmp_path):
    options = {"steps": 7, "dev": {"every": 2}, "checkpoints": {"every": 5}}
    scripted(monkeypatch, [0.3, 0.6, 0.5, 0.4])
    whole, history, expected = run(world, dev_tasks, **options)
    scripted(monkeypatch, [0.3, 0.6, 0.5, 0.4])
    original = Objective.forward

    def interrupted(self, batch):
        if self.step == 5:
            raise KeyboardInterrupt
        return original(self, batch)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Objective, "forward", interrupted)
        run(world, dev_tasks, tmp_path, **options)
    # The weights of step 4 are nowhere but in the checkpoint of step 5 by now.
    model, rows, report = run(world, dev_tasks, tmp_path, **options)
    assert (report["resumed_from_step"], report["dev"]["best_step"]) == (5, 4)
    assert report["dev"] == expected["dev"]
    assert torch.equal(weights(model), weights(whole))
    assert rows.equals(history)


def test_the_best_weights_are_returned_and_the_report_names_them(world, dev_tasks, monkeypatch):
    seen = scripted(monkeypatch, [0.3, 0.6, 0.5])
    model, history, report = run(world, dev_tasks, steps=5, dev={"every": 2})
    # Scored after 2 and 4 steps, and at the end.
    assert torch.equal(weights(model), seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert (report["dev"]["best_step"], report["dev"]["best_score"]) == (4, pytest.approx(0.6))
    assert report["dev"]["stopped_at"] is None
    curve = history[history["component"] == "dev_score"]
    assert curve["step"].tolist() == [2, 4, 5]
    assert curve["value"].tolist() == pytest.approx([0.3, 0.6, 0.5])
    narrow = history[history["component"] == "dev_score_dim_4"]
    assert narrow["value"].tolist() == pytest.approx([0.2, 0.5, 0.4])


def test_training_stops_when_it_does_not_get_better(world, dev_tasks, monkeypatch):
    seen = scripted(monkeypatch, [0.3, 0.5, 0.5, 0.4, 0.9])
    model, history, report = run(world, dev_tasks, steps=9, dev={"every": 1, "patience": 2})
    assert torch.equal(weights(model), seen[1])
    assert (report["dev"]["best_step"], report["dev"]["stopped_at"], report["steps"]) == (2, 4, 4)
    assert history["step"].max() == 4
    assert sum(source["drawn"] for source in report["sampling"]) == 4 * 12


SAVED = {"steps": 5, "dev": {"every": 2, "patience": 3}, "checkpoints": {"every": 2}}


@pytest.fixture(scope="module")
def interrupted(world, dev_tasks, tmp_path_factory):
    """Return checkpoints of a training that failed when it was scored for the third time."""
    root = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        scripted(patch, [0.9, 0.5])
        with pytest.raises(IndexError):
            run(world, dev_tasks, root, **SAVED)
    return root


@pytest.mark.parametrize("changed", ["evaluation", "rows", "prompts", "settings"])
def test_what_changes_the_scores_is_another_training(  # noqa: PLR0917
    world, dev_tasks, interrupted, monkeypatch, tmp_path, changed
):
    root = shutil.copytree(interrupted, tmp_path / "checkpoints")
    rows, task_specs, options = dev_tasks, specs(), dict(SAVED)
    evaluation = EVALUATION
    if changed == "evaluation":
        probe = {"samples_per_label": 3, "experiments": 2}
        evaluation = EvaluationParameters(**{**EVALUATION.model_dump(), "classification": probe})
    elif changed == "rows":
        rows = dev_tasks.iloc[1:]
    elif changed == "prompts":
        task_specs[-1] = {**task_specs[-1], "prompts": {"query": "fast "}}
    else:
        options["dev"] = {"every": 2, "patience": 2}
    scripted(monkeypatch, [0.9, 0.9, 0.9])
    *_, report = run(world, rows, root, task_specs, evaluation, **options)
    assert report["resumed_from_step"] == 0


def test_adapters_are_put_back_before_they_are_merged(world, dev_tasks, monkeypatch):
    calls = []

    def score(_self, model):
        with torch.no_grad():
            calls.append(model.eval().encode("lost card"))
            model.train()
        return {4: 0.9 if len(calls) == 1 else 0.1}

    monkeypatch.setattr(DevScorer, "score", score)
    model, *_ = run(world, dev_tasks, learning_rate=1e-2, dev={"every": 2}, lora={"rank": 2})
    np.testing.assert_allclose(model.encode("lost card"), calls[0], atol=1e-5)
    assert np.abs(calls[1] - calls[0]).max() > 1e-3


@pytest.mark.parametrize("rotation", [
    {"when": "none"}, {"when": "final"}, {"when": "both", "axes": "principal", "centre": True},
])  # fmt: skip
def test_the_score_is_the_one_that_evaluation_gives_the_finished_model(world, dev_tasks, rotation):
    model, pairs, *_ = world
    found = scorer(world, dev_tasks, rotation=rotation).score(model)
    finished = copy.deepcopy(model)
    if rotation["when"] != "none":
        rotate_end(
            finished, pairs, specs(), settings(rotation=rotation).rotation, widths=WIDTHS, seed=3
        )
    bank = evaluation_nodes.embed_reference(
        finished, dev_tasks, pairs, specs(), EVALUATION, WIDTHS, 3
    )
    ranges = Bundle({})
    scores, _ = evaluation_nodes.score(
        bank, bank, ranges, dev_tasks, pairs, specs(), EVALUATION, {"method": "mrl"}, WIDTHS, 3
    )
    wanted = scores[(scores["model"] == "adapted") & (scores["task"] == "mean")]
    assert found == pytest.approx(dict(zip(wanted["width"], wanted["value"], strict=True)))


def test_the_score_repeats_and_leaves_mode_and_forward_of_the_model_alone(world, dev_tasks):
    model = world[0]
    made = scorer(world, dev_tasks, dev={"every": 1, "widths": [8]})
    model.train()
    model.forward = model.forward
    try:
        wrapper, state = model.forward, torch.get_rng_state()
        first = made.score(model)
        assert model.training
        assert vars(model)["forward"] is wrapper
        assert torch.equal(torch.get_rng_state(), state)
        assert made.score(model) == first
        assert list(first) == [8]
    finally:
        del model.forward
        model.eval()


def test_a_selection_goes_on_from_its_state(world, monkeypatch):
    values = [0.2, 0.6, 0.1, 0.6, 0.3, 0.7]
    models = [tiny(step) for step in range(1, 7)]

    def selection():
        return DevSelection(DevScorer([], [], world[1], None, [], None, 0), 1, 10, patience=3)

    def advance(made, steps):
        for step in steps:
            monkeypatch.setattr(
                DevScorer, "score", lambda _self, _model, s=step: {4: values[s - 1]}
            )
            made.score(step, models[step - 1])
        return made

    whole = advance(selection(), range(1, 6))
    resumed = selection()
    resumed.load_state_dict(advance(selection(), range(1, 4)).state_dict())
    advance(resumed, range(4, 6))
    expected, found = whole.state_dict(), resumed.state_dict()
    kept, again = expected.pop("weights"), found.pop("weights")
    assert expected == found
    assert (whole.best_step, whole.stopped_at) == (2, 5)
    assert kept.keys() == again.keys() and all(torch.equal(kept[k], again[k]) for k in kept)
    target = tiny(9)
    resumed.restore(target)
    assert torch.equal(target.weight, models[1].weight)


def tiny(value: float) -> torch.nn.Linear:
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(layer.weight, value)
    return layer


def test_scores_without_dev_tasks_or_at_widths_that_are_not_there_are_refused(world, dev_tasks):
    with pytest.raises(ParameterError, match=r"training\.dev\.every: 1 .*dev_tasks is empty"):
        run(world, dev_tasks.iloc[:0], dev={"every": 1})
    with pytest.raises(ParameterError, match=r"training\.dev\.widths: \[64\].*1 to 32"):
        run(world, dev_tasks, dev={"every": 1, "widths": [8, 64]})


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        ({"patience": 2}, "widths and patience need it"),
        ({"widths": [8]}, "widths and patience need it"),
        ({"every": 5, "widths": [8, 8]}, r"strictly increasing, got \[8, 8\]"),
        ({"every": 0}, r"training\.dev\.every"),
    ],
)
def test_dev_parameters_that_do_not_fit_are_refused(dev, message):
    with pytest.raises(ParameterError, match=message):
        check_parameters({"training": {"dev": dev}})
    assert Parameters().training.dev.every is None


def test_weights_that_are_spread_over_workers_are_not_scored():
    spread = {"chunks": 1, "launch": {"fsdp": True}, "dev": {"every": 5}}
    with pytest.raises(ParameterError, match=r"launch\.fsdp: needs dev\.every: null"):
        check_parameters({"training": spread})
