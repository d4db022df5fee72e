"""A retrieval task with a corpus of a million made-up vectors: peak memory and time of its scores.

An embedding bank of random vectors is written to disk. A process of its own then loads it, builds a
retrieval task from records and scores it with the sweep that evaluates real tasks, at all widths.
Every query lies near one document, which it has to find.

The peak is VmHWM: all pages of the process that were in memory at once, those of the mapped bank
among them, and all libraries. What the kernel keeps of files besides is not in it.

    python -m benchmarks.corpus [--documents 1000000] [--width 384] [--json FILE]
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.shared import machine, table, write_json

TASK = "corpus"
SPEC = {"name": TASK, "type": "retrieval", "prompts": None, "uses": ["evaluate"]}
NOISE = 0.5
_BLOCK = 16_384


def main() -> None:
    """Measure, print the table and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--width", type=int, default=384, help="width of the vectors")
    parser.add_argument("--widths", default="16,32,64,128,256", help="the full one joins")
    parser.add_argument("--transforms", default="none")
    parser.add_argument("--directory", help="where the bank goes meanwhile")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    widths = [int(width) for width in arguments.widths.split(",")]
    widths = [width for width in widths if width < arguments.width] + [arguments.width]
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        sizes = (arguments.documents, arguments.queries, arguments.width)
        in_own_process(write_bank, Path(directory), *sizes)
        result = in_own_process(
            score, Path(directory), *sizes[:2], widths, arguments.transforms.split(",")
        )
    result = {"machine": machine("cpu"), "settings": vars(arguments), **result}
    write_json(arguments.json, result)
    print(table(result))


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``function`` in a fresh process, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def names(documents: int, queries: int) -> tuple[list[str], list[str]]:
    """Return the texts of documents and queries."""
    return (
        [f"document {number} of a made-up corpus" for number in range(documents)],
        [f"question {number}" for number in range(queries)],
    )


def records(documents: int, queries: int) -> pd.DataFrame:
    """Return one record per document; the first ones carry the query that asks for them."""
    texts, asked = names(documents, queries)
    ids = [f"d{number}" for number in range(documents)]
    rest = [None] * (documents - queries)
    return pd.DataFrame(
        {
            "task": TASK,
            "split": "test",
            "row": np.arange(documents),
            "origin": "made-up",
            "text": asked + rest,
            "text2": texts,
            "text_id": [f"q{number}" for number in range(queries)] + rest,
            "text2_id": ids,
            "score": [1.0] * queries + [np.nan] * len(rest),
            "label": None,
        }
    )


def write_bank(directory: Path, documents: int, queries: int, width: int) -> None:
    """Write the bank block by block, as a run would leave it."""
    from domain_embeddings.core.bundle import BlockArray, Bundle
    from domain_embeddings.core.encoders.bank import KEY_BYTES, text_key
    from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset

    texts, asked = names(documents, queries)
    keys = np.frombuffer(
        b"".join(text_key("", text) for text in [*texts, *asked]), dtype=np.uint8
    ).reshape(-1, KEY_BYTES)
    order = np.argsort(keys.view(f"S{KEY_BYTES}").reshape(-1))
    header = {"model": "made-up", "weight_hash": "0", "prompts": {}, "max_length": 1}
    vectors = BlockArray((len(order), width), "float32", _vectors(order, documents, queries, width))
    MemmapBundleDataset(filepath=str(directory / "bank")).save(
        Bundle({"vectors": vectors, "keys": keys[order]}, header)
    )


def _vectors(order: np.ndarray, documents: int, queries: int, width: int) -> Iterator[np.ndarray]:
    """Yield the vector of every text: noise, and near the document asked for for a query."""
    for start in range(0, len(order), _BLOCK):
        numbers = order[start : start + _BLOCK]
        block = _noise(documents + len(order) + start, (len(numbers), width))
        for row in np.flatnonzero((numbers < queries) | (numbers >= documents)):
            question = numbers[row] - documents
            block[row] = _noise(question if question >= 0 else numbers[row], (width,))
            if question >= 0:
                block[row] += NOISE * _noise(numbers[row], (width,))
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def _noise(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def score(
    directory: Path, documents: int, queries: int, widths: list[int], transforms: list[str]
) -> dict[str, Any]:
    """Score the task from the bank and return scores, seconds and peak memory in MiB."""
    from domain_embeddings.core.encoders.bank import EmbeddingBank
    from domain_embeddings.core.evaluation.scores import SweepSettings, sweep
    from domain_embeddings.core.evaluation.tasks import build_tasks
    from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset

    result: dict[str, Any] = {"peak_mib.libraries": peak_mib()}
    start = time.perf_counter()
    tasks = build_tasks(records(documents, queries), [SPEC], split="test", seed=0)
    result |= {"build_s": time.perf_counter() - start, "peak_mib.task": peak_mib()}
    bank = EmbeddingBank(MemmapBundleDataset(filepath=str(directory / "bank")).load())
    pair = {"pair_id": 0, "task": TASK, "anchor": "question 0", "positive": "question 1"}
    pairs = pd.DataFrame([pair | {"label": None}])
    start, processor = time.perf_counter(), time.process_time()
    scores, _ = sweep(
        {"reference": bank},
        tasks,
        [SPEC],
        pairs,
        SweepSettings(widths, transforms, replicates=100),
        show_progress=False,
    )
    result |= {
        "score_s": time.perf_counter() - start,
        "score_processor_s": time.process_time() - processor,
        "peak_mib": peak_mib(),
    }
    found = scores[(scores["model"] == "reference") & (scores["metric"] == "recall_at_10")]
    for row in found.itertuples():
        result[f"recall_at_10.{row.transform}.{row.width}"] = float(row.value)
    return result


def peak_mib() -> float:
    """Return the largest resident memory of this process so far."""
    # Not getrusage: its maximum is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
