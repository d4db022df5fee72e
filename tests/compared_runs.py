"""Made-up results of several runs on the same test rows, with known truths planted in them."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.reporting.comparison import ScoredRun

WIDTHS = (16, 32, 64)
TASKS = {"questions": 400, "topics": 300}
RESAMPLES = 200
# Untouched score at each width, and what a setting adds to it.
BASE = {16: 0.40, 32: 0.50, 64: 0.60}
GAINS = {"reference": 0.0, "plain": 0.10, "mrl": 0.10, "mic": 0.16}
# How far seeds are apart.
SEED_EFFECT = {0: -0.01, 1: 0.0, 2: 0.01}


def outcomes(setting: str, seed: int, task: str, width: int, n: int) -> np.ndarray:
    """Per-row outcomes: rows have a difficulty of their own that all settings share."""
    shared = np.random.default_rng(zlib.crc32(task.encode())).normal(0, 0.2, n)
    name = f"{setting}/{seed}/{task}/{width}".encode()
    own = np.random.default_rng(zlib.crc32(name)).normal(0, 0.02, n)
    effect = 0.0 if setting == "reference" else SEED_EFFECT[seed]
    return BASE[width] + GAINS[setting] + effect + shared + own - own.mean() - shared.mean()


def run(
    variant: str,
    seed: int = 0,
    *,
    setting: str | None = None,
    tasks: dict[str, int] = TASKS,
    widths: tuple[int, ...] = WIDTHS,
    general: tuple[str, ...] = (),
    resamples: int | None = RESAMPLES,
    split: str = "test",
    **parameters: Any,
) -> ScoredRun:
    """Return a run of ``setting`` (by default the method of that name) called ``variant``."""
    method = setting or variant
    rows, about, values, drawn = [], [], [], []
    for model, own in (("reference", "reference"), ("adapted", method)):
        for transform in ("none", "pca"):
            for task, n in tasks.items():
                counts = np.random.default_rng(zlib.crc32(task.encode()))
                picked = counts.integers(n, size=(resamples or 0, n))
                for width in widths:
                    x = outcomes(own, seed, task, width, n) + 0.02 * (transform == "pca")
                    row = {
                        "model": model,
                        "transform": transform,
                        "precision": "float32",
                        "task": task,
                        "type": "retrieval",
                        "metric": "ndcg_at_10",
                        "width": width,
                        "general": task in general,
                        "n": n,
                    }
                    rows.append({**row, "main": True, "value": x.mean(), "split": split})
                    about.append(row)
                    values.append(x.mean())
                    drawn.append(x[picked].mean(axis=1))
    bundle = Bundle(
        {
            "values": np.array(values),
            "replicates": np.array(drawn, dtype=np.float32),
            "undefined": np.zeros((0, 2), dtype=np.int32),
        },
        {"rows": about, "seed": seed, "split": split, "confidence": 0.95},
    )
    geometry = pd.DataFrame(
        [("reference", "isoscore", "all", width, 0.2) for width in widths]
        + [("adapted", "isoscore", "all", width, 0.2 + GAINS[method]) for width in widths],
        columns=["model", "measure", "source", "width", "value"],
    )
    training = {"method": method, "steps": 60, "precision": "fp32", "device": "cpu"}
    if method != "reference":
        training |= {"train_seconds": 30.0 + seed, "pairs_per_s": 60.0, "peak_memory_mib": 900.0}
    return ScoredRun(
        variant=variant,
        seed=seed,
        scores=pd.DataFrame(rows),
        replicates=None if resamples is None else bundle,
        geometry=geometry,
        training=training,
        parameters={"seed": seed, "training.method": method, "training.steps": 60, **parameters},
        run_id=f"{variant}{seed}".encode().hex(),
        version=f"2026-01-0{seed + 1}",
        link=f"http://127.0.0.1:5000/#/runs/{variant}{seed}",
    )
