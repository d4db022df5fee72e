"""A whole evaluation at several widths against one width, and against mteb with `truncate_dim`.

Three contestants take turns in one process, on the same texts with the same model: this project at
all widths, this project at the widest alone, and mteb, which evaluates the model once per width.
Tasks, probes and draws are the same for all. Ours includes what mteb does not give: bootstrap
intervals. The embedding store is off: every contestant encodes. Wall clock decides on an idle
machine; processor time is disturbed less by other work.

    python -m benchmarks.evaluation [--data FOLDER] [--tasks FILE] [--widths 16,32] [--json FILE]

Without ``--data`` the tasks are those of the embedded code domain, and one of sentence pairs made
from it. With it, ``--tasks`` is a YAML list of task specs (docs/data_formats.md) whose files are in
FOLDER; by default FOLDER/tasks.yml.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.shared import DEFAULT_MODEL, machine, spread, table, write_json

WIDTHS = "16,32,64,128,256,384"
EMBEDDED = (
    "docstring_to_code",
    "package_of_docstring",
    "area_of_docstring",
    "summary_and_details",
)
OVERLAP = "word_overlap"
# What a plain task of mteb has to know about the data and the draws, where the class has it.
SETTINGS = (
    "n_experiments",
    "samples_per_label",
    "n_clusters",
    "max_documents_per_cluster",
    "max_fraction_of_documents_to_embed",
    "max_document_to_embed",
    "input_column_name",
    "min_score",
    "max_score",
)


def main() -> None:
    """Measure, print the table and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the tasks' files")
    parser.add_argument("--tasks", type=Path, help="YAML list of task specs")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--widths", default=WIDTHS)
    parser.add_argument("--rows", type=int, default=500, help="test rows of a task, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bootstrap", type=int, default=1_000)
    parser.add_argument("--without-mteb", action="store_true", help="compare the widths only")
    parser.add_argument("--json")
    print(table(measure(parser.parse_args())))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Alternate the contestants and return their seconds and the ratios."""
    from domain_embeddings.core.encoders.loading import load_encoder
    from domain_embeddings.core.evaluation.tasks import build_tasks

    widths = [int(width) for width in arguments.widths.split(",")]
    records, specs = load(arguments)
    tasks = build_tasks(records, specs, split="test", seed=0)
    model = load_encoder(arguments.model, max_length=arguments.max_length)
    contestants: dict[str, Callable[[], dict[str, float]]] = {
        "all_widths": lambda: ours(model, tasks, specs, widths, arguments.bootstrap),
        "one_width": lambda: ours(model, tasks, specs, widths[-1:], arguments.bootstrap),
        "mteb": lambda: theirs(model, tasks, widths),
    }
    if arguments.without_mteb:
        del contestants["mteb"]
    result: dict[str, Any] = {
        "machine": machine("cpu"),
        "settings": {key: str(value) for key, value in vars(arguments).items()},
        "tasks": [f"{task.name} ({task.type}, {task.count})" for task in tasks],
    }
    rounds: list[dict[str, float]] = []
    names = list(contestants)
    for number in range(arguments.rounds):
        found: dict[str, float] = {}
        for name in names if number % 2 else reversed(names):
            found |= {f"{name}.{key}": value for key, value in contestants[name]().items()}
        rounds.append(found | _ratios(found))
        result |= {key: spread([own[key] for own in rounds]) for key in rounds[0]}
        write_json(arguments.json, result)
    return result


def _ratios(found: dict[str, float]) -> dict[str, float]:
    """Compare the contestants of one round."""
    every, one = "all_widths", "one_width"
    parts = ("encode_s", "encode_processor_s", "whole_s", "whole_processor_s")
    ratios = {
        f"ratio.all_over_one.{part}": found[f"{every}.{part}"] / found[f"{one}.{part}"]
        for part in parts
    }
    if "mteb.whole_s" in found:
        for part in parts[2:]:
            ratios[f"ratio.mteb_over_ours.{part}"] = (
                found[f"mteb.{part}"] / found[f"{every}.{part}"]
            )
    return ratios


def ours(
    model: Any, tasks: Sequence[Any], specs: list[dict[str, Any]], widths: list[int], bootstrap: int
) -> dict[str, float]:
    """Evaluate as the project does and return what it took in seconds."""
    from domain_embeddings.core.encoders.bank import EmbeddingBank
    from domain_embeddings.core.evaluation.embed import embed
    from domain_embeddings.core.evaluation.scores import SweepSettings, sweep

    no_pairs = pd.DataFrame({"pair_id": [], "task": [], "anchor": [], "positive": [], "label": []})
    start = _clocks()
    bundle = embed(model, tasks, no_pairs, specs, batch_tokens=16_384, show_progress=False)
    encoded = _clocks()
    settings = SweepSettings(widths, transforms=("none",), replicates=bootstrap)
    sweep(
        {"reference": EmbeddingBank(bundle)}, tasks, specs, no_pairs, settings, show_progress=False
    )
    done = _clocks()
    return {
        "encode_s": encoded[0] - start[0],
        "encode_processor_s": encoded[1] - start[1],
        "score_s": done[0] - encoded[0],
        "score_processor_s": done[1] - encoded[1],
        "whole_s": done[0] - start[0],
        "whole_processor_s": done[1] - start[1],
    }


def theirs(model: Any, tasks: Sequence[Any], widths: list[int]) -> dict[str, float]:
    """Evaluate with mteb alone, once per width, and return what it took in seconds."""
    import mteb

    plain = [plain_task(task) for task in tasks]
    start = _clocks()
    for width in widths:
        model.truncate_dim = width
        try:
            mteb.evaluate(model, plain, cache=None, show_progress_bar=False, co2_tracker=False)
        finally:
            model.truncate_dim = None
    done = _clocks()
    return {"whole_s": done[0] - start[0], "whole_processor_s": done[1] - start[1]}


def plain_task(task: Any) -> Any:
    """Return mteb's own task on the data of one of ours.

    Args:
        task: A `LocalTask`.
    """
    from mteb.abstasks.abstask import AbsTask

    base: Any = next(
        kind
        for kind in type(task).__mro__
        if kind.__module__.startswith("mteb.") and issubclass(kind, AbsTask)
    )

    def load_data(self: Any, *args: Any, **kwargs: Any) -> None:
        self.dataset, self.data_loaded = task.dataset, True

    settings = {name: getattr(task, name) for name in SETTINGS if hasattr(task, name)}
    body = {"metadata": task.metadata, "load_data": load_data, **settings}
    return type(f"Plain{base.__name__}", (base,), body)(seed=task.seed)


def load(arguments: argparse.Namespace) -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Return the records and the specs of the tasks.

    Raises:
        DataError: A file or a spec is not as it should be.
    """
    from domain_embeddings.core.tasks.records import RawTasks
    from domain_embeddings.core.tasks.spec import parse_specs

    if arguments.data:
        path = arguments.tasks or arguments.data / "tasks.yml"
        listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    else:
        listed = [{"name": name, "builtin": name} for name in EMBEDDED]
    specs = parse_specs(listed)
    records, _ = RawTasks(tuple(specs), arguments.data or Path.cwd()).read()
    described = [spec.model_dump(mode="json") for spec in specs]
    if not arguments.data:
        records = pd.concat([records, overlap_pairs(records)], ignore_index=True)
        described.append({**described[0], "name": OVERLAP, "type": "sts"})
    return few(records, arguments.rows), described


def overlap_pairs(records: pd.DataFrame) -> pd.DataFrame:
    """Make sentence pairs whose gold score is the share of words they have in common."""
    texts = records[(records["task"] == EMBEDDED[1]) & (records["split"] == "test")]
    pairs = texts.assign(task=OVERLAP, label=None, text2=texts["text"].shift(1)).iloc[1:]
    words = [
        (set(str(one).lower().split()), set(str(other).lower().split()))
        for one, other in zip(pairs["text"], pairs["text2"], strict=True)
    ]
    return pairs.assign(score=[len(a & b) / len(a | b) for a, b in words])


def few(records: pd.DataFrame, rows: int) -> pd.DataFrame:
    """Keep so many test rows of every task; documents without a query all stay."""
    asked = (records["split"] == "test") & records["text"].notna()
    late = records[asked].groupby("task").cumcount() >= rows
    return records.drop(index=late.index[late]).reset_index(drop=True)


def _clocks() -> np.ndarray:
    """Return wall and processor time in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


if __name__ == "__main__":
    main()
