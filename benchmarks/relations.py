"""Speed and memory of the statistics of relation vectors, against this machine's own matmul rate.

Two questions, each answered by one table:

* How fast is the streaming covariance? Its rate is divided by the rate of a plain float64 matrix
  product measured in turn with it in the same run, so that the ratio holds on a busy machine too.
* How much memory does it take to write and read relation vectors from disk? Measured in a process
  of its own.

Usage: ``python -m benchmarks.relations [--rows N] [--width D] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import spread
from domain_embeddings.core.bundle import BlockArray, Bundle
from domain_embeddings.core.statistics.moments import accumulate
from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset
from domain_embeddings.parameters import RezeParameters
from domain_embeddings.pipelines.reze.nodes import (
    accumulate_moments,
    decompose,
    fit_shrinkage,
    measure_task_variance,
)

SOURCES = 8
MIB = 1024 * 1024


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def covariance_rate(width: int, rows: int, rounds: int) -> dict[str, Any]:
    """Compare the streaming covariance with plain products of the same size, alternating.

    A covariance of n rows counts as the 2 n D^2 operations of a general product, although the
    symmetric product underneath needs half of them; both ratios are given.

    Args:
        width: Width of a relation vector (D).
        rows: Rows per round, in memory, float32.
        rounds: Rounds of one measurement each.

    Returns:
        Rates in Gflop/s and their ratios, each as [minimum, median, maximum].
    """
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((rows, width), dtype=np.float32)
    source = generator.integers(SOURCES, size=rows, dtype=np.int32)
    left = generator.standard_normal((width, rows))
    right = generator.standard_normal((rows, width))
    square = generator.standard_normal((2_048, 2_048))
    bundle = Bundle({"vectors": vectors, "source": source})
    block_rows = RezeParameters().block_rows
    work = 2.0 * rows * width * width

    def stream() -> None:
        blocks = bundle.row_blocks("vectors", block_rows)
        accumulate(blocks, bundle.row_blocks("source", block_rows), SOURCES)

    rates: dict[str, list[float]] = {"covariance": [], "same_shape": [], "square": []}
    stream()  # the first call starts the threads
    for _ in range(rounds):
        rates["same_shape"].append(work / _seconds(lambda: left @ right) / 1e9)
        rates["covariance"].append(work / _seconds(stream) / 1e9)
        rates["square"].append(2.0 * 2_048**3 / _seconds(lambda: square @ square) / 1e9)
    result: dict[str, Any] = {f"{name}_gflops": spread(values) for name, values in rates.items()}
    for name in ("same_shape", "square"):
        ratios = [a / b for a, b in zip(rates["covariance"], rates[name], strict=True)]
        result[f"ratio_to_{name}_matmul"] = spread(ratios)
    return {"width": width, "rows": rows, "rounds": rounds, **result}


def streaming(width: int, rows: int, directory: Path) -> dict[str, Any]:
    """Write synthetic relation vectors, then run the REZE stage on them from disk.

    Args:
        width: Width of a relation vector (D).
        rows: Number of relation vectors (N).
        directory: Where the vectors go.

    Returns:
        Seconds of each step and the peak memory of this process in MiB.
    """
    reze = RezeParameters()
    before = _peak_mib()
    dataset = MemmapBundleDataset(filepath=str(directory / "relation_vectors"))
    source = (np.arange(rows) % SOURCES).astype(np.int32)
    header = {"sources": [f"task_{s}" for s in range(SOURCES)], "width": width // 2}
    blocks = BlockArray((rows, width), "float32", _synthetic_blocks(width, rows, reze.block_rows))
    written = _seconds(lambda: dataset.save(Bundle({"vectors": blocks, "source": source}, header)))
    peak_write = _peak_mib()

    start = time.perf_counter()
    moments = accumulate_moments(dataset.load(), reze)
    accumulated = time.perf_counter() - start
    eigenspace = decompose(moments, reze)
    variance = measure_task_variance(moments, eigenspace, reze)
    shrinkage = fit_shrinkage(eigenspace, variance, reze)
    total = time.perf_counter() - start
    return {
        "width": width,
        "rows": rows,
        "file_mib": rows * width * 4 / MIB,
        "write_s": written,
        "moments_s": accumulated,
        "reze_stage_s": total,
        "touched_dimensions": len(shrinkage["columns"]),
        "start_mib": before,
        "peak_write_mib": peak_write,
        "peak_mib": _peak_mib(),
    }


def _synthetic_blocks(width: int, rows: int, block_rows: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    scale = np.linspace(1.0, 0.1, width, dtype=np.float32)
    for start in range(0, rows, block_rows):
        size = min(block_rows, rows - start)
        block = generator.standard_normal((size, width), dtype=np.float32) * scale
        block[:, 0] += ((start + np.arange(size)) % SOURCES == 0).astype(np.float32)
        yield block


def _peak_mib() -> float:
    # Not getrusage: its maximum is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``function`` in a fresh process, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _print(title: str, result: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, value in result.items():
        values = value if isinstance(value, list) else [value]
        print(f"  {name:32}" + "".join(f"{number:>12.4g}" for number in values))


def main() -> None:
    """Measure, print the tables and write them as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000, help="relation vectors on disk")
    parser.add_argument("--width", type=int, default=768, help="width of a relation vector")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of the rate comparison")
    parser.add_argument("--directory", type=Path, help="where the vectors go meanwhile")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()

    rate = covariance_rate(arguments.width, 16_384, arguments.rounds)
    _print("Covariance against matmul, float64 [min, median, max]", rate)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        memory = _in_own_process(streaming, arguments.width, arguments.rows, Path(directory))
    _print("Streaming from disk", memory)
    if arguments.json:
        text = json.dumps({"covariance": rate, "streaming": memory}, indent=2)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
