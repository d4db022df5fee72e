"""A training that is killed, and killed again, ends as if nothing had happened."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from killable import train_in, world_in

from domain_embeddings.core.errors import TrainingError
from domain_embeddings.core.training.objective import Objective

KILLABLE = Path(__file__).parents[2] / "killable.py"
STEPS, EVERY = 72, 4
RUN = {
    "steps": STEPS, "warmup_ratio": 0.2, "method": "reze_mic", "weights": "dynamic",
    "widths_per_step": 3, "regulariser_warmup": 0.5, "checkpoints": {"every": EVERY},
}  # fmt: skip


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """Train in a forked child of a process that has everything imported; return how it ended."""
    process = subprocess.Popen(
        [sys.executable, str(KILLABLE), str(tmp_path_factory.mktemp("world"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip

    def order(**content) -> int:
        process.stdin.write(json.dumps(content) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("ended "):
                return int(line.split()[1])
        raise AssertionError("the worker is gone")

    yield order
    process.stdin.close()
    process.stdout.close()
    assert process.wait() == 0


def result(path: Path) -> tuple[dict, dict]:
    with np.load(path) as arrays:
        return dict(arrays), json.loads(path.with_suffix(".json").read_text())


def require_same_bits(path: Path, other: Path) -> None:
    (first, facts), (second, others) = result(path), result(other)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), name
    for key in ("components", "padding_ratio", "masked_negatives"):
        assert facts[key] == others[key], key


def plans(seed: int, kills: int) -> list[dict]:
    """Kill from outside at any time of a step, and at any operation on disk, in turn."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    outside = [{"steps": rng.randint(1, 7), "delay": rng.uniform(0, 0.05)} for _ in range(kills)]
    inside = [{"writes": rng.randint(1, 30), "after": rng.random() < 0.5} for _ in range(kills)]
    return [plan for both in zip(outside, inside, strict=True) for plan in both]


@pytest.mark.parametrize("seed", [0])
def test_killed_at_twelve_random_moments_it_ends_with_the_bits_of_the_uninterrupted_run(
    worker, tmp_path, seed
):
    whole, resumed = tmp_path / "whole.npz", tmp_path / "resumed.npz"
    assert worker(out=str(whole), root=str(tmp_path / "a"), parameters=RUN) == 0
    assert result(whole)[1]["resumed_from_step"] == 0
    root = tmp_path / "b"
    order = {"out": str(resumed), "root": str(root), "parameters": RUN}
    reached = []
    for plan in plans(seed, 6):
        assert worker(**order, kill=plan) == -signal.SIGKILL, plan
        assert not resumed.exists()
        reached.append(max((int(p.name[5:]) for p in root.glob("*/step-*[0-9]")), default=0))
    assert worker(**order) == 0
    assert reached == sorted(reached)
    assert len(set(reached)) > 5, reached
    facts = result(resumed)[1]
    assert facts["resumed_from_step"] == reached[-1] < STEPS
    require_same_bits(whole, resumed)
    [folder] = root.iterdir()
    assert str(folder) == facts["checkpoints"]["folder"]
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "step-000000064", "step-000000068"]


# ---------------------------------------------------------------- in this process, by exceptions


class Stop(Exception):
    """Ends a training like a kill, but for this process."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return world_in(tmp_path_factory.mktemp("world"))


def run(world, root, seed=0, **changes):
    return train_in(world, root, {"steps": 7, "checkpoints": {"every": 2}, **changes}, seed)


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def at_call(count: int, action, monkeypatch) -> None:
    """Do something at the n-th step, after the loss is computed."""
    original, calls = Objective.forward, []

    def forward(self, batch):
        result = original(self, batch)
        calls.append(batch)
        return result if len(calls) != count else action(self, result)

    monkeypatch.setattr(Objective, "forward", forward)


def stop(*_):
    raise Stop


def interrupt(world, root, step=6, **changes) -> Path:
    """Train until a step fails; return the folder of the checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        at_call(step, stop, patch)
        with pytest.raises(Stop):
            run(world, root, **changes)
    [folder] = [path for path in root.iterdir() if any(path.glob("step-*"))]
    return folder


def test_a_damaged_checkpoint_costs_some_steps_but_no_bit(world, tmp_path, caplog):
    folder = interrupt(world, tmp_path)
    assert sorted(p.name for p in folder.glob("step-*")) == ["step-000000002", "step-000000004"]
    (folder / "step-000000004/state.safetensors").write_bytes(b"")
    model, history, report = run(world, tmp_path)
    assert report["resumed_from_step"] == 2
    assert "step-000000004 cannot be used" in caplog.text
    expected, rows, whole = run(world, None)
    assert torch.equal(weights(model), weights(expected))
    assert history.equals(rows)
    assert whole["resumed_from_step"] == 0
    assert whole["checkpoints"] is None


@pytest.fixture(scope="module")
def interrupted(world, tmp_path_factory) -> Path:
    """Return a folder with the checkpoints of a training that was interrupted."""
    return interrupt(world, tmp_path_factory.mktemp("interrupted")).parent


def goes_on(world, root, caplog, **changes) -> bool:
    """Begin a training, without finishing a step, and say whether it was a resumed one."""
    caplog.set_level(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        at_call(1, stop, patch)
        with pytest.raises(Stop):
            run(world, root, **changes)
    return "Training goes on from step 4" in caplog.text


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1}, {"learning_rate": 2e-4}, {"steps": 8}, {"logging_steps": 2}, {"chunks": 3},
        {"rotation": {"when": "final"}}, {"precision": "bf16"}, {"resume": "never"},
    ],
)  # fmt: skip
def test_another_training_is_never_resumed(world, interrupted, caplog, change):
    assert not goes_on(world, interrupted, caplog, **change)


def test_other_data_are_never_resumed(world, interrupted, caplog):
    model, pairs, specs, relations, shrinkage = world
    # Not part of the hash of the pair table, but of what the loss sees.
    pairs = pairs.assign(negatives=[["other fish"] if n else [] for n in pairs["negatives"]])
    assert not goes_on((model, pairs, specs, relations, shrinkage), interrupted, caplog)


def test_the_same_training_is_resumed_and_says_from_where(world, interrupted, caplog):
    assert goes_on(world, interrupted, caplog)
    assert f"({interrupted}/" in caplog.text


def test_what_has_no_influence_does_not_prevent_resuming(world, tmp_path):
    interrupt(world, tmp_path)
    *_, report = run(world, tmp_path, checkpoints={"every": 3, "keep": 1}, device="auto")
    assert report["resumed_from_step"] == (0 if torch.cuda.is_available() else 4)
    # At step 6, which is not the last one, and at no step of the earlier interval.
    assert report["checkpoints"]["written"] == 1
    [folder] = tmp_path.iterdir()
    assert [p.name for p in folder.glob("step-*")] == ["step-000000006"]


def test_a_run_shorter_than_the_interval_touches_no_disk(world, tmp_path):
    root = tmp_path / "checkpoints"
    *_, report = run(world, root, checkpoints={"every": 7})
    assert report["checkpoints"] is None
    assert not root.exists()


def test_a_full_disk_costs_the_checkpoints_but_not_the_training(
    world, tmp_path, monkeypatch, caplog
):
    expected = weights(run(world, None)[0])

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    model, _, report = run(world, tmp_path)
    assert torch.equal(weights(model), expected)
    assert (report["checkpoints"]["written"], report["checkpoints"]["failed"]) == (0, 3)
    assert caplog.text.count("No space left on device") == 3


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint_and_names_it(
    world, tmp_path, monkeypatch
):
    at_call(6, lambda _, result: (result[0], {"loss": result[0] * torch.nan}), monkeypatch)
    with pytest.raises(
        TrainingError, match=r"step 6: loss not finite.*checkpoint is of step 4 in .*"
    ):
        run(world, tmp_path)
    [folder] = tmp_path.iterdir()
    assert (folder / "step-000000004/manifest.json").exists()


def test_weights_that_are_not_finite_are_not_stored(world, tmp_path, monkeypatch):
    def poison(objective, result):
        # As a step with an infinite gradient would: the loss itself was still finite.
        objective.model[0].auto_model.embeddings.LayerNorm.bias.data[0] = torch.inf
        return result

    at_call(4, poison, monkeypatch)
    with pytest.raises(TrainingError, match=r"after step 4: the weight .*is of step 2 in"):
        run(world, tmp_path)
    [folder] = tmp_path.iterdir()
    assert [p.name for p in folder.glob("step-*")] == ["step-000000002"]


def test_out_of_memory_says_what_took_it_and_what_to_turn(world, tmp_path, monkeypatch):
    at_call(4, lambda *_: torch.empty(2**50), monkeypatch)
    with pytest.raises(TrainingError) as error:
        run(world, tmp_path)
    for part in (
        "Out of memory at step 4 on cpu", "training.batch_size=8 ", "training.chunks=4",
        "3 layers of width 32", "64 tokens", "reference_model.max_length", "step 2 in",
    ):  # fmt: skip
        assert part in str(error.value)


def test_errors_that_are_none_of_memory_stay_what_they_are(world, monkeypatch):
    def bug(*_):
        raise RuntimeError("a bug")

    at_call(1, bug, monkeypatch)
    with pytest.raises(RuntimeError, match="a bug"):
        run(world, None)
