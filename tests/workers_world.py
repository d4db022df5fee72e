"""A tiny training job, and what two workers do with it in the tests of distributed training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from tiny_models import WORDS, tiny_sentence_transformer

if TYPE_CHECKING:
    from domain_embeddings.core.training.job import Job

WIDTHS = [4, 8, 16, 32]
ROWS = 48
BATCH = 12
SPECS = [
    {"name": "intents", "type": "classification", "prompts": None, "weight": 1.0},
    {"name": "faq", "type": "retrieval", "prompts": None, "weight": 1.0},
]
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "mrl": {"method": "mrl"},
    "mic": {"method": "mic", "layers": "all", "gamma": 2.0, "lambda_corr": 50.0},
    "mic_fixed_tau": {"method": "mic", "tau": 0.02, "lambda_var": 1.0},
    "reze_mic": {"method": "reze_mic", "reze_dims": "nested"},
    "ese": {"method": "ese"},
    "cached": {"method": "mic", "gradient_cache": 4},
    "options": {
        "method": "mic", "symmetric": True, "weights": "dynamic", "widths_per_step": 2,
        "mapping": "pairs", "layers": [1, 1, 2, 2],
    },
}  # fmt: skip
TRAININGS = {
    "killed": {"method": "mrl", "steps": 30, "checkpoints": {"every": 5}},
    "apart": {"method": "reze_mic", "rotation": {"when": "init"}},
    "accumulated": {"method": "mrl", "accumulation": 2, "rotation": {"when": "final"}},
    "sharded": {
        "method": "reze_mic", "rotation": {"when": "init"}, "chunks": 1, "layers": "all",
        "launch": {"fsdp": True},
    },
}  # fmt: skip


def make_pairs() -> pd.DataFrame:
    """Build pairs with repeated classes and texts, and mined negatives in some rows only."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"pair_id": np.arange(ROWS)})
    frame["task"] = [SPECS[i % 2]["name"] for i in range(ROWS)]
    for column in ("anchor", "positive"):
        frame[column] = [" ".join(rng.choice(WORDS, rng.integers(2, 14))) for _ in range(ROWS)]
    # One in each half of the first batch: only across workers do they meet.
    frame.loc[7, "positive"] = frame.loc[1, "positive"]
    frame["negatives"] = [["good fish", "lost card"] if i in (1, 3, 9) else [] for i in range(ROWS)]
    # A text of the class of pair 0, which the false-negative mask has to know on every worker.
    frame.at[8, "negatives"] = [frame.loc[18, "anchor"]]
    frame["label"] = [str(i % 6) if i % 2 == 0 else None for i in range(ROWS)]
    return frame


def make_job(folder: Path, **parameters: Any) -> Job:
    """Build a training job without dropout, with a random shrinkage."""
    from domain_embeddings.core.bundle import Bundle
    from domain_embeddings.core.encoders.relations import relation_vectors
    from domain_embeddings.core.training.job import Job

    model = tiny_sentence_transformer(folder / "tiny", layers=2)
    config = model[0].auto_model.config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    model.save_pretrained(str(folder / "undropped"), create_model_card=False)
    model = type(model)(str(folder / "undropped"), device="cpu").eval()
    pairs = make_pairs()
    streamed = relation_vectors(model, pairs, SPECS, batch_tokens=512, dtype="float32")
    rng = np.random.default_rng(0)
    shrinkage = {
        "columns": np.arange(3),
        "basis": np.linalg.qr(rng.normal(size=(64, 3)))[0],
        "mean": rng.normal(size=64) * 0.1,
        "offset": rng.normal(size=(2, 3)) * 0.3,
        "scale": np.ones((2, 3)),
    }
    vectors = np.concatenate(list(streamed.arrays["vectors"].blocks))
    values = {"steps": 6, "batch_size": BATCH // 2, "logging_steps": 2, "precision": "fp32"}
    return Job(
        task="training",
        model=model,
        pairs=pairs,
        settings={
            "device": "cpu",
            "task_specs": SPECS,
            "parameters": {**values, "chunks": 3, "device": "cpu", **parameters},
            "widths": WIDTHS,
            "seed": 0,
            "checkpoint_root": None,
            "evaluation": None,
        },
        bundles={
            "relation_vectors": Bundle(
                {"vectors": vectors, "source": streamed["source"]}, streamed.header
            ),
            "shrinkage": Bundle(shrinkage, streamed.header),
        },
    )


def losses_and_gradients(job: Job, ids: range) -> dict[str, np.ndarray]:
    """Return total loss, components and gradient of every method in float64.

    Among several workers these are the mean over workers and what the optimiser would see.
    """
    import torch

    from domain_embeddings.core.training.batches import PairCollator, tokenise_pairs
    from domain_embeddings.core.training.distributed import average_gradients, mean
    from domain_embeddings.core.training.objective import Objective
    from domain_embeddings.parameters import TrainingParameters

    model = job.model.double()
    model[0].auto_model.config.output_hidden_states = True
    collator = PairCollator(model, tokenise_pairs(model, job.pairs, SPECS), 3)
    batch = collator([{"pair_id": i} for i in ids])
    found = {}
    for name, changes in METHODS.items():
        parameters = TrainingParameters(**{**job.settings["parameters"], **changes})
        bundles = job.bundles
        loss = Objective(
            model, WIDTHS, parameters, bundles["relation_vectors"], bundles["shrinkage"]
        )
        loss.double().zero_grad()
        loss.measure_gradients = True
        total, components = loss(batch)
        total.backward()
        trained = [p for p in loss.parameters() if p.grad is not None]
        average_gradients(trained)
        found[f"{name}.gradient"] = torch.cat([p.grad.flatten() for p in trained]).numpy()
        for component, value in components.items():
            found[f"{name}.{component}"] = mean(value.double()).numpy()
    return found


def trained(job: Job, **changes: Any) -> np.ndarray:
    """Train and return embeddings of the anchors.

    Not the weights: the first steps of Adam are of one size, however small a gradient is.
    """
    from domain_embeddings.core.training.train import train
    from domain_embeddings.parameters import TrainingParameters

    settings = {**job.settings["parameters"], **changes}
    model, *_ = train(
        job.model, job.pairs, SPECS, job.bundles["relation_vectors"], job.bundles["shrinkage"],
        parameters=TrainingParameters(**settings), widths=WIDTHS, seed=0,
    )  # fmt: skip
    return model.encode(list(job.pairs["anchor"]))


def work(number: int, folder: str) -> None:
    """Be one of two workers, in a process of its own."""
    import torch
    import torch.distributed as dist

    from domain_embeddings.core.training import distributed
    from domain_embeddings.core.training.job import read_job

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
        OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false",
    )  # fmt: skip
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2
    )
    half = BATCH // 2
    found = losses_and_gradients(read_job(Path(folder)), range(half * number, half * (number + 1)))
    # Rows of unequal number: x_k of worker k is repeated k + 1 times.
    x = torch.full((number + 1, 2), number + 1.0, dtype=torch.float64, requires_grad=True)
    parts = distributed.gather(x)
    found["gathered"] = torch.cat(parts).detach().numpy()
    (torch.cat(parts).square().sum() * (number + 1)).backward()
    found["gathered.slope"] = x.grad.numpy()
    y = torch.tensor([number + 1.0], requires_grad=True)
    (distributed.total(y) ** 2 * (number + 1)).sum().backward()
    found["total.slope"] = y.grad.numpy()
    for name, changes in TRAININGS.items():
        found[f"trained.{name}"] = trained(read_job(Path(folder)), **changes)
    np.savez(Path(folder) / f"found_{number}.npz", **found)
    dist.destroy_process_group()
