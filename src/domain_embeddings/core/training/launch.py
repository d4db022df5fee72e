"""Start workers on this host with torch elastic, and bring back what they made."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import domain_embeddings
from domain_embeddings.core import errors
from domain_embeddings.core.encoders.loading import load_encoder, read_widths
from domain_embeddings.core.errors import ParameterError, TrainingError, UserError
from domain_embeddings.core.training.job import JOB_FILE, Job, write_job
from domain_embeddings.core.training.train import resolve_device
from domain_embeddings.core.training.worker import ERROR_FILE, RESULT

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from domain_embeddings.core.bundle import Bundle
    from domain_embeddings.parameters import (
        EvaluationParameters,
        LaunchParameters,
        TrainingParameters,
    )

logger = logging.getLogger(__name__)

WORKER = "domain_embeddings.core.training.worker"
# Otherwise workers that are started again may find the addresses of dead ones in the agent's store.
FRESH_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
MESSAGE_LINES = 12


def train_on_workers(  # noqa: PLR0913 - one argument per catalog entry
    reference_model: SentenceTransformer,
    pairs: pd.DataFrame,
    task_specs: Sequence[Mapping[str, Any]],
    relation_vectors: Bundle,
    shrinkage: Bundle,
    *,
    parameters: TrainingParameters,
    widths: Sequence[int],
    seed: int,
    checkpoint_root: str | Path | None = None,
    dev_tasks: pd.DataFrame | None = None,
    evaluation: EvaluationParameters | None = None,
) -> tuple[SentenceTransformer, pd.DataFrame, dict[str, Any]]:
    """Train like `train`, on ``training.launch.processes`` workers of this host.

    Args:
        reference_model: See `train`; stays untouched.
        pairs: See `train`.
        task_specs: See `train`.
        relation_vectors: See `train`; a memory-mapped array is linked, not copied.
        shrinkage: See `train`.
        parameters: Parameters of the section ``training``; ``batch_size`` is that of each worker.
        widths: See `train`.
        seed: See `train`.
        checkpoint_root: Folder of the checkpoints of all trainings, which workers that are started
            again go on from; None starts them from the beginning.
        dev_tasks: See `train`.
        evaluation: See `train`.

    Returns:
        What `train` returns, as the first worker made it.

    Raises:
        UserError: Whatever a worker raised of this kind.
        TrainingError: If workers fail for another reason more often than they may be restarted.
    """
    device = resolve_device(parameters.device)
    job = Job(
        task="training",
        model=reference_model,
        pairs=pairs,
        settings={
            "device": device,
            "task_specs": list(task_specs),
            "parameters": parameters.model_dump(mode="json"),
            "widths": list(widths),
            "seed": seed,
            "checkpoint_root": None
            if checkpoint_root is None
            else str(Path(checkpoint_root).resolve()),
            "evaluation": None if evaluation is None else evaluation.model_dump(mode="json"),
        },
        bundles={"relation_vectors": relation_vectors, "shrinkage": shrinkage},
        dev_tasks=dev_tasks,
    )
    with job_folder(parameters.launch.folder) as folder:
        write_job(folder, job)
        run_workers(folder, parameters.launch, device)
        result = folder / RESULT
        model: Any = load_encoder(str(result / "model"), device=str(reference_model.device))
        model.provenance = dict(getattr(reference_model, "provenance", {}))
        model.trained_widths = read_widths(result / "model")
        report = json.loads((result / "report.json").read_text(encoding="utf-8"))
        return model, pd.read_parquet(result / "history.parquet"), report


@contextlib.contextmanager
def job_folder(chosen: str | None) -> Iterator[Path]:
    """Make an empty folder for a job.

    Args:
        chosen: A folder that the user has named and that stays; None for one that is gone
            afterwards.

    Raises:
        ParameterError: If the chosen folder holds anything but an earlier job.
    """
    if chosen is not None:
        folder = Path(chosen).resolve()
        if folder.is_dir() and any(folder.iterdir()) and not (folder / JOB_FILE).is_file():
            msg = f"launch.folder: {folder} holds something else than a job; choose an empty folder"
            raise ParameterError(msg)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix="domain_embeddings_job_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_workers(folder: Path, launch: LaunchParameters, device: str) -> None:
    """Run the workers of a job folder until they are done.

    A worker that dies takes the others with it, and all are started again, up to
    ``launch.restarts`` times. With several hosts, this one starts its own workers and waits for
    those that a person starts on the others.

    Args:
        folder: The job folder.
        launch: How many processes, and how often they may be restarted.
        device: ``cpu`` or ``cuda``.

    Raises:
        ParameterError: If there are fewer GPUs than workers.
        UserError: The error that a worker has left in the folder.
        TrainingError: If workers fail for another reason more often than they may be restarted.
    """
    if device == "cuda" and launch.processes > torch.cuda.device_count():
        msg = (
            f"launch.processes: {launch.processes} workers need a GPU each, there are "
            f"{torch.cuda.device_count()}; allowed: 1 to {torch.cuda.device_count()}"
        )
        raise ParameterError(msg)
    if launch.hosts > 1:
        logger.warning(
            "Waiting for %d other hosts; start on each of them:\n%s",
            launch.hosts - 1,
            shlex.join(torchrun(folder, launch)),
        )
    try:
        with _own_signals(), _environment():
            elastic_launch(_config(folder, launch), sys.executable)("-m", WORKER, str(folder))
    except ChildFailedError as failed:
        raise _error_of(folder, failed, launch) from None


def torchrun(folder: Path, launch: LaunchParameters) -> list[str]:
    """Return what a person runs on another host to join in."""
    return [
        "env",
        f"{FRESH_STORE}=1",
        "torchrun",
        f"--nnodes={launch.hosts}",
        f"--nproc-per-node={launch.processes}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={launch.endpoint}",
        f"--rdzv-id={folder.name}",
        f"--max-restarts={launch.restarts}",
        "-m",
        WORKER,
        str(folder),
    ]


def _config(folder: Path, launch: LaunchParameters) -> LaunchConfig:
    """Translate the section ``launch`` for torch elastic."""
    alone = launch.hosts == 1
    return LaunchConfig(
        min_nodes=launch.hosts,
        max_nodes=launch.hosts,
        nproc_per_node=launch.processes,
        run_id=folder.name,
        rdzv_backend="c10d",
        # Port 0 is any free one.
        rdzv_endpoint="localhost:0" if alone else str(launch.endpoint),
        local_addr="localhost" if alone else None,
        max_restarts=launch.restarts,
        # Ctrl-C stays what it is everywhere else.
        signals_to_handle="SIGTERM",
        logs_specs=DefaultLogsSpecs(
            str(folder / "logs"), redirects=dict.fromkeys(range(1, launch.processes), Std.ALL)
        ),
    )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Put back the signal handler that torch elastic replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Let workers import the package that this process has imported, and start with no memory."""
    root = str(Path(domain_embeddings.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    changes = {"PYTHONPATH": path, FRESH_STORE: "1"}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _error_of(folder: Path, failed: ChildFailedError, launch: LaunchParameters) -> UserError:
    """Return what a worker said about its end, as the error it would have been in this process."""
    path = folder / ERROR_FILE
    if path.is_file():
        content = json.loads(path.read_text(encoding="utf-8"))
        kind = getattr(errors, content["type"], UserError)
        return kind(content["message"])
    rank, failure = failed.get_first_failure()
    said: Any = failure.message
    if isinstance(said, dict):
        said = said.get("extraInfo", {}).get("py_callstack", said.get("message", ""))
    lines = "\n".join(str(said).strip().splitlines()[-MESSAGE_LINES:])
    msg = f"Worker {rank} failed and was restarted {launch.restarts} times. At last:\n{lines}"
    return TrainingError(msg)
