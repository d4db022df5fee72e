"""Encoding throughput against `SentenceTransformer.encode`: same model, texts and precision.

Both encode the same texts in turn, in one process, and have to return the same vectors. The order
of the two changes from round to round; the first round of each is not counted.

    python -m benchmarks.encoding --data pairs.jsonl --columns anchor,positive --json out.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.shared import (
    add_options,
    load_pairs,
    machine,
    spread,
    synchronise,
    table,
    write_json,
)

TOLERANCE = 1e-5


def main() -> None:
    """Measure, print the table and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--texts", type=int, default=2_000, help="distinct texts, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-tokens", type=int, default=16_384, help="token budget of ours")
    parser.add_argument("--batch-size", type=int, default=32, help="texts in a batch of theirs")
    print(table(measure(parser.parse_args())))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Alternate both and return their rates in texts per second and the ratio.

    Wall clock decides. On the CPU the processor time is given too: other work on the machine
    disturbs it less.

    Raises:
        AssertionError: If the vectors of the two differ.
    """
    from domain_embeddings.core.encoders.batching import encode, tokenise
    from domain_embeddings.core.encoders.loading import load_encoder
    from domain_embeddings.core.training.train import resolve_device

    device = resolve_device(arguments.device)
    pairs = load_pairs(arguments.data, arguments.columns, arguments.texts)
    texts = list(dict.fromkeys([*pairs["anchor"], *pairs["positive"]]))[: arguments.texts]
    model = load_encoder(arguments.model, max_length=arguments.max_length, device=device)
    contestants: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: encode(
            model, texts, batch_tokens=arguments.batch_tokens, show_progress=False
        ),
        "st_encode": lambda: model.encode(
            texts, batch_size=arguments.batch_size, show_progress_bar=False
        ),
    }
    result: dict[str, Any] = {
        "machine": machine(device),
        "settings": vars(arguments) | {"device": device, "precision": "fp32"},
        "texts": len(texts),
        "tokens": sum(len(row["input_ids"]) for row in tokenise(model, texts)),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    names = list(contestants)
    for done in range(arguments.rounds + 1):
        vectors = {}
        for name in names if done % 2 else reversed(names):
            vectors[name], *seconds = _timed(contestants[name], device)
            if done:
                times[name].append((seconds[0], seconds[1]))
        difference = float(np.abs(vectors["ours"] - vectors["st_encode"]).max())
        if difference > TOLERANCE:
            msg = f"the embeddings of the two differ by {difference:.2e}"
            raise AssertionError(msg)
        if done:
            result |= {"rounds": done, "largest_difference": difference}
            result |= _summary(times, len(texts), device)
            write_json(arguments.json, result)
    return result


def _timed(work: Callable[[], np.ndarray], device: str) -> tuple[np.ndarray, float, float]:
    """Return the result, and the seconds of wall clock and of processor that it took."""
    synchronise(device)
    wall, processor = time.perf_counter(), time.process_time()
    vectors = work()
    return vectors, time.perf_counter() - wall, time.process_time() - processor


def _summary(
    times: dict[str, list[tuple[float, float]]], texts: int, device: str
) -> dict[str, list[float]]:
    """Return rates and ratios as [minimum, median, maximum] over rounds."""
    found = {
        f"texts_per_s.{name}": spread([texts / wall for wall, _ in own])
        for name, own in times.items()
    }
    rounds = list(zip(times["ours"], times["st_encode"], strict=True))
    found["ratio.ours_over_st_encode"] = spread([theirs[0] / ours[0] for ours, theirs in rounds])
    if device == "cpu":
        found["ratio.ours_over_st_encode.processor_time"] = spread(
            [theirs[1] / ours[1] for ours, theirs in rounds]
        )
    return found


if __name__ == "__main__":
    main()
