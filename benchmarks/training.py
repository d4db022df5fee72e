"""Training throughput and memory against sentence-transformers' own Matryoshka loss, in one run.

The contestants alternate, so that drift of a shared machine hits all of them, and ratios are taken
within a round. On the CPU each one runs in a process of its own, whose peak memory is then its own;
on a GPU all share one process, because the allocator tells what each of them took.

A contestant is ``st_matryoshka`` or one of our methods, optionally with its number of chunks and
its attention: ``mrl:16``, ``mrl:1:eager``.

    python -m benchmarks.training --data pairs.jsonl --columns anchor,positive --json out.json
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.shared import (
    add_options,
    load_pairs,
    machine,
    spread,
    synchronise,
    table,
    write_json,
)

PEER = "st_matryoshka"
OURS = ("plain", "mrl", "mic", "reze", "reze_mic")
CONTESTANTS = (PEER, "mrl", "mic", "reze", "reze_mic")
RATIOS = (("mrl", PEER), ("mic", "mrl"), ("reze_mic", "mrl"))
ATTENTION = ("sdpa", "eager", "flash_attention_2")
WIDTHS = [16, 32, 64, 128, 256, 384]
GPU_WARMUP = 10

OPTIONS = (
    "data",
    "columns",
    "steps",
    "warmup",
    "batch_size",
    "chunks",
    "max_length",
    "precision",
    "device",
    "model",
)
Arguments = argparse.Namespace
Rounds = list[dict[str, dict[str, Any]]]


class Contestant(NamedTuple):
    """What is trained, and how; fields that are None come from the command line or the model."""

    method: str
    chunks: int | None
    attention: str | None

    @classmethod
    def parse(cls, name: str) -> Contestant:
        """Read ``method[:chunks[:attention]]``.

        Raises:
            ValueError: If the method or the attention is unknown.
        """
        method, chunks, attention = [*name.split(":"), None, None][:3]
        if method not in (PEER, *OURS):
            msg = f"unknown contestant '{name}'; allowed: {PEER}, {', '.join(OURS)}"
            raise ValueError(msg)
        if attention not in (None, *ATTENTION):
            msg = f"unknown attention in '{name}'; allowed: {', '.join(ATTENTION)}"
            raise ValueError(msg)
        return cls(method, int(chunks) if chunks else None, attention)


def main() -> None:
    """Run the benchmark, or one contestant of one round."""
    arguments = _arguments()
    if arguments.contestant:
        print(json.dumps(run(arguments.contestant, arguments)))
        return
    print(table(measure(arguments)))


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, help="steps before the clock starts; default: "
                        f"{GPU_WARMUP} on a GPU, else 0")  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--chunks", type=int, help="padded chunks in the place of packed rows")
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--one-process", action="store_true", help="also on the CPU, where "
                        "peak_mib is then that of the largest so far")  # fmt: skip
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in (arguments.contestant or arguments.contestants).split(","):
        Contestant.parse(name)
    return _resolved(arguments)


def _resolved(arguments: Arguments) -> Arguments:
    """Replace ``auto`` by what it stands for on this machine."""
    from domain_embeddings.core.training.train import resolve_device, use_bf16

    arguments.device = resolve_device(arguments.device)
    bf16 = use_bf16(arguments.precision, arguments.device)
    arguments.precision = "bf16" if bf16 else "fp32"
    if arguments.warmup is None:
        arguments.warmup = GPU_WARMUP if arguments.device == "cuda" else 0
    return arguments


def measure(arguments: Arguments) -> dict[str, Any]:
    """Let the contestants alternate; the file of figures is kept up to date on the way."""
    facts = {"machine": machine(arguments.device), "settings": _settings(arguments)}
    names = arguments.contestants.split(",")
    one_process = arguments.device == "cuda" or arguments.one_process
    one = run if one_process else _in_own_process
    rounds: Rounds = []
    result: dict[str, Any] = {}
    for _ in range(arguments.rounds):
        rounds.append({})
        for name in names:
            rounds[-1][name] = one(name, arguments)
            print(f"{name:24} {rounds[-1][name]['samples_per_s']:9.1f} pairs/s", flush=True)
            complete = len(rounds) == arguments.rounds and name == names[-1]
            result = {"complete": complete, **facts, **summarise(rounds), "rounds": rounds}
            write_json(arguments.json, result)
    return result


def _settings(arguments: Arguments) -> dict[str, Any]:
    hidden = ("contestant", "json", "contestants")
    kept = {key: value for key, value in vars(arguments).items() if key not in hidden}
    return {**kept, "widths": WIDTHS}


def _in_own_process(name: str, arguments: Arguments) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.training", "--contestant", name]
    for key in OPTIONS:
        value = getattr(arguments, key)
        if value is not None:
            command += [f"--{key.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def run(name: str, arguments: Arguments) -> dict[str, Any]:
    """Train one contestant and return its throughput, padding ratio and peak memory."""
    import torch

    from domain_embeddings.core.encoders.loading import backbone, load_encoder
    from domain_embeddings.core.training.memory import peak_memory_mib

    contestant = Contestant.parse(name)
    batch_size = arguments.batch_size
    pairs = load_pairs(arguments.data, arguments.columns, arguments.steps * batch_size)
    # Whole batches only, so that all contestants see the same rows.
    steps = len(pairs) // batch_size
    pairs = pairs.iloc[: steps * batch_size]
    model = load_encoder(arguments.model, max_length=arguments.max_length, device=arguments.device)
    if contestant.attention:
        backbone(model).set_attn_implementation(contestant.attention)
    train = _train_peer if contestant.method == PEER else _train_ours
    warmup = min(arguments.warmup, steps)
    if warmup:
        # On a copy: a trainer leaves its marks on the model.
        train(copy.deepcopy(model), pairs.iloc[: warmup * batch_size], contestant, arguments)
    gpu = arguments.device == "cuda"
    if gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, padding_ratio = train(model, pairs, contestant, arguments)
    peak = torch.cuda.max_memory_allocated() / 1024**2 if gpu else peak_memory_mib()
    return {
        "samples_per_s": len(pairs) / seconds,
        "peak_mib": peak,
        "padding_ratio": padding_ratio,
        "steps": steps,
    }


def _train_peer(
    model: Any, pairs: pd.DataFrame, contestant: Contestant, arguments: Arguments
) -> tuple[float, float]:
    """Train with sentence-transformers' trainer, collator and losses as they come."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        MatryoshkaLoss,
        MultipleNegativesRankingLoss,
    )

    loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), WIDTHS)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=tempfile.mkdtemp(),
            max_steps=len(pairs) // arguments.batch_size,
            per_device_train_batch_size=arguments.batch_size,
            learning_rate=5e-5,
            bf16=arguments.precision == "bf16",
            use_cpu=arguments.device == "cpu",
            seed=0,
            save_strategy="no",
            report_to="none",
            dataloader_drop_last=True,
            dataloader_pin_memory=arguments.device == "cuda",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_pandas(pairs[["anchor", "positive"]], preserve_index=False),
        loss=loss,
    )
    trainer.args._n_gpu = min(1, trainer.args.n_gpu)
    seconds = _seconds(trainer, time.monotonic(), arguments.device)
    return seconds, _padding_ratio(trainer.get_train_dataloader())


def _padding_ratio(batches: Any) -> float:
    """Make the peer's batches once more, when its clock has stopped, and count their tokens."""
    masks = [
        value for batch in batches for key, value in batch.items() if key.endswith("attention_mask")
    ]
    return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)


def _train_ours(
    model: Any, pairs: pd.DataFrame, contestant: Contestant, arguments: Arguments
) -> tuple[float, float]:
    """Train one of our methods; relation vectors are random, as speed does not depend on them."""
    from datasets import Dataset

    from domain_embeddings.core.bundle import Bundle
    from domain_embeddings.core.encoders.packing import can_pack, packing
    from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
    from domain_embeddings.core.training.objective import Objective
    from domain_embeddings.core.training.train import training_arguments
    from domain_embeddings.core.training.trainer import PairTrainer
    from domain_embeddings.parameters import TrainingParameters

    relations, shrinkage = _random_relations(len(pairs))
    chunks = contestant.chunks or arguments.chunks
    parameters = TrainingParameters(
        method=contestant.method,
        steps=len(pairs) // arguments.batch_size,
        batch_size=arguments.batch_size,
        packing="never" if chunks else "auto",
        chunks=chunks or 8,
        precision=arguments.precision,
        device=arguments.device,
        logging_steps=500,
    )
    specs = [{"name": name, "type": "retrieval"} for name in pairs["task"].unique()]
    start = time.monotonic()
    # Tokenising counts: the peer does it in every step, we do it once.
    packed = parameters.packing == "auto" and can_pack(model)
    collator = PairCollator(
        model, tokenise_pairs(model, pairs, specs), parameters.chunks, packed=packed
    )
    trainer = PairTrainer(
        model=model,
        args=training_arguments(parameters, 0, tempfile.mkdtemp()),
        train_dataset=Dataset.from_dict({"pair_id": pairs["pair_id"].tolist()}),
        loss=Objective(model, WIDTHS, parameters, Bundle(relations), Bundle(shrinkage)),
        data_collator=collator,
    )
    trainer.args.disable_tqdm = True
    with packing(model, on=packed):
        return _seconds(trainer, start, arguments.device), collator.padding_ratio()


def _random_relations(rows: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    width, touched = 2 * WIDTHS[-1], 100
    relations = {
        "vectors": rng.normal(size=(rows, width)).astype(np.float32),
        "source": np.zeros(rows, np.int32),
    }
    shrinkage = {
        "basis": np.linalg.qr(rng.normal(size=(width, touched)))[0],
        "mean": np.zeros(width),
        "offset": rng.normal(size=(1, touched)),
        "scale": np.ones((1, touched)),
        "columns": np.arange(touched),
    }
    return relations, shrinkage


def _seconds(trainer: Any, start: float, device: str) -> float:
    """Train, and return the seconds since ``start``."""
    trainer.train()
    synchronise(device)
    return time.monotonic() - start


def summarise(rounds: Rounds) -> dict[str, Any]:
    """Return medians per contestant and ratios as [min, median, max] over rounds."""
    result: dict[str, Any] = {}
    for name in rounds[0]:
        own = [found[name] for found in rounds if name in found]
        for key in ("samples_per_s", "peak_mib", "padding_ratio"):
            result[f"{key}.{name}"] = float(np.median([one[key] for one in own]))
    for first, second in RATIOS:
        ratios = [
            found[first]["samples_per_s"] / found[second]["samples_per_s"]
            for found in rounds
            if first in found and second in found
        ]
        if ratios:
            result[f"ratio.{first}_over_{second}"] = spread(ratios)
    return result


if __name__ == "__main__":
    main()
