"""One of several workers: reads a job folder, does its part, and the first one writes the result.

``torchrun --nnodes 2 ... -m domain_embeddings.core.training.worker JOB_FOLDER`` on every host, or
started by `domain_embeddings.core.training.launch` on one.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from domain_embeddings.core.errors import user_error

if TYPE_CHECKING:
    from domain_embeddings.core.training.job import Job

ERROR_FILE = "error.json"
RESULT = "result"
_PR_SET_PDEATHSIG = 1


def main(folder: Path) -> int:
    """Do this worker's part of a job.

    Args:
        folder: The job folder.

    Returns:
        Exit status: 0, or 1 for an error that the user can correct, which is then in
        ``error.json`` and printed by the worker that found it.
    """
    _die_with_parent()
    error = folder / ERROR_FILE
    if _attempt() == 0 and os.environ.get("RANK", "0") == "0":
        # What workers have left that a person started on this folder before.
        error.unlink(missing_ok=True)
        shutil.rmtree(folder / RESULT, ignore_errors=True)
    elif _attempt() > 0 and error.is_file():
        # Another attempt would only find the same.
        return 1
    elif _attempt() > 0 and (folder / RESULT).is_dir():
        # Another worker died after the work was done.
        return 0
    _share_processors()
    _keep_quiet()
    # Not before: they read the number of threads when they are imported.
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        record(_work)(folder)
    except Exception as raised:
        known = user_error(raised)
        if known is None:
            raise
        _write_error(error, known)
        return 1
    return 0


def _work(folder: Path) -> None:
    """Join the other workers and do what the job says."""
    import torch
    import torch.distributed as dist

    from domain_embeddings.core.training.job import read_job

    job = read_job(folder)
    cuda = job.settings["device"] == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        {"training": _train, "relations": _encode}[job.task](job, folder)
    finally:
        dist.destroy_process_group()


def _encode(job: Job, folder: Path) -> None:
    """Encode this worker's share of the pairs."""
    import torch

    from domain_embeddings.core.encoders.sharded import encode_shard
    from domain_embeddings.core.training.distributed import worker, workers

    if job.settings["device"] == "cuda":
        job.model.to(torch.device("cuda", torch.cuda.current_device()))
    encode_shard(job, folder, worker(), workers())


def _train(job: Job, folder: Path) -> None:
    """Train; the first worker writes model, history and report."""
    from domain_embeddings.core.encoders.loading import write_widths
    from domain_embeddings.core.training.distributed import worker
    from domain_embeddings.core.training.train import train
    from domain_embeddings.parameters import EvaluationParameters, TrainingParameters

    settings = job.settings
    parameters = settings["parameters"]
    options = {}
    if settings["checkpoint_root"] is not None:
        options["checkpoint_root"] = settings["checkpoint_root"]
        if _attempt() > 0:
            # Whether to resume an earlier run is the user's choice; this is the same one.
            parameters = {**parameters, "resume": "auto"}
    evaluation = settings["evaluation"]
    model, history, report = train(
        job.model,
        job.pairs,
        settings["task_specs"],
        job.bundles["relation_vectors"],
        job.bundles["shrinkage"],
        parameters=TrainingParameters.model_validate(parameters),
        widths=settings["widths"],
        seed=settings["seed"],
        **options,
        dev_tasks=job.dev_tasks,
        evaluation=evaluation and EvaluationParameters.model_validate(evaluation),
    )
    if worker() != 0:
        return
    partial = folder / f"{RESULT}.partial"
    partial.mkdir(exist_ok=True)
    model.save_pretrained(str(partial / "model"), create_model_card=False)
    write_widths(partial / "model", list(getattr(model, "trained_widths", [])))
    history.to_parquet(partial / "history.parquet")
    (partial / "report.json").write_text(json.dumps(report), encoding="utf-8")
    partial.rename(folder / RESULT)


def _write_error(path: Path, error: Exception) -> None:
    """Leave the error for whoever started the workers; the first one to find one counts."""
    sys.stderr.write(f"{error}\n")
    content = json.dumps({"type": type(error).__name__, "message": str(error)})
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_text(content, encoding="utf-8")
    try:
        # A link, so that it appears whole, and only if there is none yet.
        path.hardlink_to(own)
    except FileExistsError:
        pass
    own.unlink()


def _attempt() -> int:
    """Return how often the workers have been started again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _share_processors() -> None:
    """Divide the processors of this host among its workers."""
    processors = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    share = max(1, (processors or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    # torchrun sets 1 where nothing is set, so what is found here is not what the user said.
    os.environ["OMP_NUM_THREADS"] = str(share)


def _keep_quiet() -> None:
    """Let only the first worker show progress and warnings."""
    if os.environ.get("RANK", "0") == "0":
        return
    os.environ["TQDM_DISABLE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _die_with_parent() -> None:
    """End when the process that started this one does, however it ended; on Linux only.

    A run that is killed and started again must not meet its own workers still at work.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
