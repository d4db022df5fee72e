"""Relation vectors by several workers: each encodes its own rows, and none waits for another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from domain_embeddings.core.bundle import BlockArray, Bundle
from domain_embeddings.core.encoders.relations import BLOCK_PAIRS, relation_vectors
from domain_embeddings.core.errors import ParameterError
from domain_embeddings.core.statistics.moments import Moments, accumulate, merge
from domain_embeddings.core.training.job import Job, write_job
from domain_embeddings.core.training.launch import job_folder, run_workers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.parameters import LaunchParameters

MOMENTS = "moments_"


def relation_vectors_on_workers(  # noqa: PLR0913 - one argument per choice
    model: SentenceTransformer,
    pairs: pd.DataFrame,
    task_specs: Sequence[Mapping[str, Any]],
    *,
    batch_tokens: int,
    dtype: str,
    launch: LaunchParameters,
) -> Bundle:
    """Encode like `relation_vectors`, on several workers of this host.

    Args:
        model: See `relation_vectors`.
        pairs: See `relation_vectors`.
        task_specs: See `relation_vectors`.
        batch_tokens: See `relation_vectors`; of each worker.
        dtype: See `relation_vectors`.
        launch: How many workers.

    Returns:
        What `relation_vectors` returns, and the moments of the vectors as arrays
        ``moments_count``, ``moments_mean``, ``moments_global_mean`` and ``moments_scatter``: each
        worker took those of its rows.

    Raises:
        UserError: Whatever a worker raised of this kind.
        TrainingError: If workers fail for another reason more often than they may be restarted.
    """
    whole = relation_vectors(model, pairs, task_specs, batch_tokens=batch_tokens, dtype=dtype)
    device = model.device.type
    if launch.workers > len(pairs):
        msg = f"relations.launch: {launch.workers} workers for {len(pairs)} pairs; allowed: 1 each"
        raise ParameterError(msg)
    settings = {
        "device": device,
        "task_specs": list(task_specs),
        "batch_tokens": batch_tokens,
        "dtype": dtype,
    }
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(job_folder(launch.folder))
        write_job(folder, Job("relations", model, pairs, settings, {}))
        run_workers(folder, launch, device)
        moments = reduce(merge, (_moments(folder, k) for k in range(launch.workers)))
        # The vectors are read from the folder while they are saved, so it stays until then.
        kept = stack.pop_all()
    announced: Any = whole.arrays["vectors"]
    vectors = BlockArray(announced.shape, dtype, _shards(kept, folder, launch.workers))
    arrays = {f"{MOMENTS}{name}": array for name, array in asdict(moments).items()}
    return Bundle({"vectors": vectors, "source": whole["source"], **arrays}, whole.header)


def encode_shard(job: Job, folder: Path, number: int, of: int) -> None:
    """Encode the rows of one worker into the job folder, unless an earlier attempt has.

    Args:
        job: A job of the task ``relations``.
        folder: Its folder.
        number: Number of this worker, from 0.
        of: How many there are.
    """
    target = folder / f"vectors_{number}.npy"
    if target.exists():
        return
    rows = len(job.pairs)
    own = slice(rows * number // of, rows * (number + 1) // of)
    settings = job.settings
    part = relation_vectors(
        job.model,
        job.pairs.iloc[own],
        settings["task_specs"],
        batch_tokens=settings["batch_tokens"],
        dtype=settings["dtype"],
    )
    described: Any = part.arrays["vectors"]
    partial = target.with_suffix(".partial")
    vectors = np.lib.format.open_memmap(
        partial, mode="w+", dtype=described.dtype, shape=described.shape
    )
    start = 0
    for block in described.blocks:
        vectors[start : start + len(block)] = block
        start += len(block)
    vectors.flush()
    _save_moments(folder, number, job, own, vectors)
    partial.rename(target)


def _save_moments(folder: Path, number: int, job: Job, own: slice, vectors: np.ndarray) -> None:
    """Take the moments of a worker's rows, as they are stored."""
    # Of all pairs: a worker's rows need not hold every source.
    sources, codes = np.unique(job.pairs["task"].to_numpy(dtype=str), return_inverse=True)
    blocks = [slice(start, start + BLOCK_PAIRS) for start in range(0, len(vectors), BLOCK_PAIRS)]
    own_codes = codes[own]
    moments = accumulate(
        (vectors[block] for block in blocks), (own_codes[block] for block in blocks), len(sources)
    )
    np.savez(folder / f"moments_{number}.npz", **asdict(moments))


def _moments(folder: Path, number: int) -> Moments:
    with np.load(folder / f"moments_{number}.npz", allow_pickle=False) as stored:
        return Moments(**stored)


def _shards(kept: contextlib.ExitStack, folder: Path, workers: int) -> Iterator[np.ndarray]:
    """Yield the vectors of all workers in blocks, then let go of their folder."""
    with kept:
        for number in range(workers):
            shard = Bundle({"vectors": np.load(folder / f"vectors_{number}.npy", mmap_mode="r")})
            yield from shard.row_blocks("vectors", BLOCK_PAIRS)
