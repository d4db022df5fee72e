"""A job folder: everything that workers in other processes, or on other hosts, need to start."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.loading import load_encoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

JOB_FILE = "job.json"
HEADER_FILE = "header.json"


@dataclass(frozen=True)
class Job:
    """What a job folder holds.

    Args:
        task: ``training`` or ``relations``.
        model: The reference model.
        pairs: Training pairs.
        settings: Everything that is plain JSON.
        bundles: Arrays by name, memory-mapped.
        dev_tasks: Records that training is scored on, if it is.
    """

    task: str
    model: SentenceTransformer
    pairs: pd.DataFrame
    settings: dict[str, Any]
    bundles: dict[str, Bundle]
    dev_tasks: pd.DataFrame | None = None


def write_job(folder: Path, job: Job) -> None:
    """Write a job folder; complete once it holds ``job.json``.

    Args:
        folder: An existing folder that all workers can read, and the first one can write to.
        job: Its content. An array that is memory-mapped from a file of its own is linked, not
            copied.
    """
    job.model.save_pretrained(str(folder / "model"), create_model_card=False)
    job.pairs.to_parquet(folder / "pairs.parquet")
    if job.dev_tasks is not None:
        job.dev_tasks.to_parquet(folder / "dev_tasks.parquet")
    for name, bundle in job.bundles.items():
        _write_bundle(folder / name, bundle)
    content = {
        "task": job.task,
        "provenance": getattr(job.model, "provenance", None),
        "settings": job.settings,
        "bundles": list(job.bundles),
    }
    partial = folder / f"{JOB_FILE}.partial"
    partial.write_text(json.dumps(content, indent=2), encoding="utf-8")
    partial.rename(folder / JOB_FILE)


def read_job(folder: Path) -> Job:
    """Read a job folder; the model is loaded on the CPU."""
    content = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    model: Any = load_encoder(str(folder / "model"))
    if content["provenance"] is None:
        del model.provenance
    else:
        model.provenance = content["provenance"]
    dev = folder / "dev_tasks.parquet"
    return Job(
        task=content["task"],
        model=model,
        pairs=pd.read_parquet(folder / "pairs.parquet"),
        settings=content["settings"],
        bundles={name: _read_bundle(folder / name) for name in content["bundles"]},
        dev_tasks=pd.read_parquet(dev) if dev.is_file() else None,
    )


def _write_bundle(folder: Path, bundle: Bundle) -> None:
    folder.mkdir()
    for name in bundle.arrays:
        array, path = bundle[name], folder / f"{name}.npy"
        stored = _file_of(array)
        if stored is not None:
            path.symlink_to(stored)
        else:
            np.save(path, array, allow_pickle=False)
    sizes = {name: bundle[name].size for name in bundle.arrays}
    content = {"header": bundle.header, "arrays": sizes}
    (folder / HEADER_FILE).write_text(json.dumps(content), encoding="utf-8")


def _file_of(array: np.ndarray) -> Path | None:
    """Return the .npy file that an array maps as a whole, if there is one."""
    name = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or name is None or Path(name).suffix != ".npy":
        return None
    whole = np.load(name, mmap_mode="r", allow_pickle=False)
    # A part of a mapped array still names the file of the whole.
    same = (whole.shape, whole.dtype, whole.strides) == (array.shape, array.dtype, array.strides)
    return Path(name).resolve() if same else None


def _read_bundle(folder: Path) -> Bundle:
    content = json.loads((folder / HEADER_FILE).read_text(encoding="utf-8"))
    arrays = {
        # An empty file region cannot be mapped.
        name: np.load(folder / f"{name}.npy", mmap_mode="r" if size else None, allow_pickle=False)
        for name, size in content["arrays"].items()
    }
    return Bundle(arrays, content["header"])
