"""Pairs, relation vectors and a shrinkage small enough to train on in a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from tiny_models import WORDS

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.training.batches import Batch, PairCollator, tokenise_pairs
from domain_embeddings.core.training.objective import Objective
from domain_embeddings.core.training.train import train
from domain_embeddings.parameters import TrainingParameters

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

World = tuple["SentenceTransformer", pd.DataFrame, Bundle, Bundle]

SPECS: list[dict[str, Any]] = [
    {"name": "intents", "type": "classification", "prompts": None, "weight": 1.0},
    {
        "name": "faq",
        "type": "retrieval",
        "weight": 1.0,
        "prompts": {"query": "fast ", "document": ""},
    },
    {"name": "pairs", "type": "pair_classification", "prompts": None, "weight": 1.0},
]


def make_pairs(rows: int = 60) -> pd.DataFrame:
    """Return random pairs of three tasks, some with labels and some with mined negatives."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"pair_id": np.arange(rows)})
    frame["task"] = [SPECS[i % 3]["name"] for i in range(rows)]
    frame["anchor"] = [" ".join(rng.choice(WORDS, rng.integers(1, 14))) for _ in range(rows)]
    frame["positive"] = [" ".join(rng.choice(WORDS, rng.integers(1, 14))) for _ in range(rows)]
    frame["negatives"] = [["good fish"] if i % 3 == 1 else [] for i in range(rows)]
    frame["label"] = [str(i % 5) if i % 3 == 0 else None for i in range(rows)]
    return frame


def make_shrinkage(header: dict[str, Any], width: int = 32, seed: int = 0) -> Bundle:
    """Return a shrinkage of three random columns."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(2 * width, 3)))[0]
    arrays = {
        "columns": np.arange(3),
        "basis": basis,
        "mean": rng.normal(size=2 * width) * 0.1,
        "offset": rng.normal(size=(3, 3)) * 0.3,
        "scale": np.ones((3, 3)),
    }
    return Bundle(arrays, header)


def make_world(
    model: SentenceTransformer, pairs: pd.DataFrame, specs: list[dict[str, Any]] = SPECS
) -> World:
    """Return a model, its pairs, their relation vectors and a shrinkage, all of one origin."""
    from domain_embeddings.core.encoders.relations import relation_vectors

    streamed = relation_vectors(model, pairs, specs, batch_tokens=512, dtype="float32")
    vectors = np.concatenate(list(streamed.arrays["vectors"].blocks))
    relations = Bundle({"vectors": vectors, "source": streamed["source"]}, streamed.header)
    width = vectors.shape[1] // 2
    return model, pairs, relations, make_shrinkage(streamed.header, width)


def settings(**changes: Any) -> TrainingParameters:
    """Return settings of a training that takes a moment."""
    values = {"steps": 3, "batch_size": 12, "logging_steps": 1, "precision": "fp32", "chunks": 4}
    return TrainingParameters(**{**values, "device": "cpu", **changes})


def run(world: World, widths: list[int], seed: int = 0, **changes: Any) -> tuple[Any, ...]:
    """Train on a world; returns what `train` returns."""
    model, pairs, relations, shrinkage = world
    return train(
        model, pairs, SPECS, relations, shrinkage,
        parameters=settings(**changes), widths=widths, seed=seed,
    )  # fmt: skip


def objective(world: World, widths: list[int], seed: int = 0, **changes: Any) -> Objective:
    """Return the objective of a world whose model is in evaluation mode."""
    model, _, relations, shrinkage = world
    return Objective(model.eval(), widths, settings(**changes), relations, shrinkage, seed=seed)


def batch_of(
    world: World, chunks: int = 4, rows: int = 12, *, views: bool = False
) -> tuple[Batch, PairCollator]:
    """Return the batch of the first pairs of a world, and the collator that made it."""
    model, pairs, *_ = world
    collator = PairCollator(model, tokenise_pairs(model, pairs, SPECS), chunks, views)
    return collator([{"pair_id": i} for i in range(rows)]), collator


def weights(model: Any) -> torch.Tensor:
    """Return all parameters of a model as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
