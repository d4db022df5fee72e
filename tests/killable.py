"""Trains on demand in forked children that get killed: a real SIGKILL, but no new import.

Reads one JSON order a line from standard input, and answers each with one line:

    {"out": file, "root": folder, "parameters": {...}, "kill": null | {...}}

``kill`` is ``{"steps": n, "delay": seconds}``, from outside and so many seconds after the n-th step
began, or ``{"writes": n, "after": bool}``, at the n-th thing that a checkpoint does to the disk,
before or after it is done.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

sys.path.append(str(Path(__file__).parent))

from tiny_models import tiny_sentence_transformer
from tiny_training import SPECS, make_pairs, make_world

from domain_embeddings.core.training.train import train
from domain_embeddings.core.training.trainer import PairTrainer
from domain_embeddings.parameters import TrainingParameters

WIDTHS = [4, 8, 16, 32]
BASE = {"batch_size": 8, "logging_steps": 3, "precision": "fp32", "chunks": 4, "device": "cpu"}


def world_in(folder: Path) -> tuple:
    model, pairs, *stored = make_world(tiny_sentence_transformer(folder, layers=3), make_pairs())
    return model, pairs, SPECS, *stored


def train_in(world: tuple, root: str | Path | None, parameters: dict, seed: int = 0) -> tuple:
    return train(
        *world, parameters=TrainingParameters(**{**BASE, **parameters}), widths=WIDTHS, seed=seed,
        checkpoint_root=root,
    )  # fmt: skip


def report_steps(pipe: int) -> None:
    """Write a byte at the beginning of every step."""
    original = PairTrainer.training_step

    def training_step(self, *arguments, **options):
        os.write(pipe, b".")
        return original(self, *arguments, **options)

    PairTrainer.training_step = training_step


def die_at_write(count: int, after: bool) -> None:
    """Kill this process at the n-th operation on disk from now on."""
    left = [count]

    def deadly(function):
        def wrapper(*arguments, **options):
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*arguments, **options)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for owner, name in (
        (os, "fsync"), (Path, "rename"), (Path, "mkdir"), (Path, "write_text"), (shutil, "rmtree"),
        (safetensors.torch, "save_file"),
    ):  # fmt: skip
        setattr(owner, name, deadly(getattr(owner, name)))


def child(world: tuple, order: dict, pipe: int) -> None:
    kill = order.get("kill") or {}
    report_steps(pipe)
    if "writes" in kill:
        die_at_write(kill["writes"], kill["after"])
    model, history, report = train_in(world, order["root"], order["parameters"])
    weights = {f"weights.{name}": t.numpy() for name, t in model.state_dict().items()}
    np.savez(order["out"], **weights, history=history["value"], steps=history["step"])
    facts = ("resumed_from_step", "padding_ratio", "masked_negatives", "checkpoints")
    Path(order["out"]).with_suffix(".json").write_text(
        json.dumps({"components": list(history["component"]), **{k: report[k] for k in facts}})
    )


def run(world: tuple, order: dict) -> int:
    """Return how the child ended: minus the signal, or its exit code."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            child(world, order, writing)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    kill = order.get("kill") or {}
    with os.fdopen(reading, "rb", buffering=0) as steps:
        seen = 0
        while steps.read(1):
            seen += 1
            if seen == kill.get("steps"):
                time.sleep(kill["delay"])
                os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    # One thread: there is no pool of threads that a fork would lose.
    torch.set_num_threads(1)
    prepared = world_in(Path(sys.argv[1]))
    for line in sys.stdin:
        sys.stdout.write(f"ended {run(prepared, json.loads(line))}\n")
        sys.stdout.flush()
