"""Compare settings on held-out tasks: variants x seeds, one line of JSON per finished run.

The stages up to `reze` are read from the catalog (run them once with
``kedro run --pipelines=ingestion,curation,relations,reze``), so a run here is training and
evaluation only. Finished runs are skipped when the study is started again.

    python -m benchmarks.study --split dev --seeds 0,1,2 --out study.jsonl \
        --variant untouched:training.method=reference --variant mrl:training.method=mrl
    python -m benchmarks.study --show study.jsonl
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from domain_embeddings.parameters import Parameters, check_parameters

INPUTS = ("reference_model", "training_pairs", "task_specs", "relation_vectors", "shrinkage")


def main() -> None:
    """Run or show a study."""
    arguments = _arguments()
    if arguments.show:
        print(summary(read(Path(arguments.show))).to_string())
        return
    out = Path(arguments.out)
    done = {(row["variant"], row["seed"]) for row in read(out)}
    world = World(arguments.env, arguments.split, arguments.transforms.split(","))
    for variant in arguments.variant:
        name, _, changes = variant.partition(":")
        for seed in map(int, arguments.seeds.split(",")):
            if (name, seed) in done:
                continue
            row = world.run(parse(changes), seed)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"variant": name, "changes": changes, **row}) + "\n")
            print(name, seed, {k: round(v * 100, 2) for k, v in row["mean"].items()}, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="base", help="configuration whose catalog is read")
    parser.add_argument("--split", default="dev", choices=["dev", "test"])
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--transforms", default="none,pca")
    parser.add_argument("--variant", action="append", default=[], help="name:key=value;key=value")
    parser.add_argument("--out", default="study.jsonl")
    parser.add_argument("--show", help="print the summary of a finished study")
    return parser.parse_args()


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


class World:
    """Inputs of a study, loaded once."""

    def __init__(self, env: str, split: str, transforms: list[str]) -> None:
        """Load the catalog of one environment."""
        from domain_embeddings.pipelines.curation.nodes import select_evaluation_tasks

        bootstrap_project(Path.cwd())
        with KedroSession.create(Path.cwd(), env=env) as session:
            context = session.load_context()
            self.raw = dict(context.config_loader["parameters"])
            load = context.catalog.load
            self.inputs = {name: load(name) for name in INPUTS}
            records, leakage = load("curated_records"), load("leakage_report")
        self.fixed = {"evaluation": {"split": split, "transforms": transforms, "bootstrap": 0}}
        parameters = self.parameters({})
        self.tasks = select_evaluation_tasks(
            records,
            self.inputs["task_specs"],
            leakage,
            parameters.curation,
            parameters.evaluation,
        )

    def parameters(self, changes: Mapping[str, Any]) -> Parameters:
        """Return the parameters of a variant."""
        return check_parameters(_merge(_merge(self.raw, self.fixed), changes))

    def run(self, changes: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Train and score one variant with one seed."""
        from domain_embeddings.pipelines.training.nodes import train_model

        p = self.parameters(changes)
        start = time.monotonic()
        model, _, report = train_model(*self.inputs.values(), p.training, p.widths, seed)
        trained = time.monotonic()
        return {
            "seed": seed,
            "train_s": trained - start,
            "pairs_per_s": report.get("pairs_per_s"),
            **self.score(model, p),
            "evaluate_s": time.monotonic() - trained,
        }

    def score(self, model: Any, p: Parameters) -> dict[str, Any]:
        """Score one model alone; the probes keep seed 0, so that only training differs."""
        from domain_embeddings.core.encoders.bank import EmbeddingBank
        from domain_embeddings.core.evaluation.sampling import sample_pairs
        from domain_embeddings.core.evaluation.scores import SweepSettings, sweep
        from domain_embeddings.pipelines.evaluation.nodes import _tasks, embed_adapted

        pairs, specs = self.inputs["training_pairs"], self.inputs["task_specs"]
        bank = embed_adapted(model, self.tasks, pairs, specs, p.evaluation, p.widths, 0)
        scores = sweep(
            {"reference": EmbeddingBank(bank)},
            _tasks(self.tasks, specs, p.evaluation, 0),
            specs,
            sample_pairs(pairs, p.evaluation.fit_pairs, 0),
            SweepSettings(
                widths=p.widths,
                transforms=p.evaluation.transforms,
                replicates=0,
                confidence=p.evaluation.confidence,
                seed=0,
                split=p.evaluation.split,
            ),
        )
        return _scores(scores)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        merged[key] = _merge(base[key], value) if nested else value
    return merged


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


def read(path: Path) -> list[dict[str, Any]]:
    """Return the finished runs of a study."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _rows(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for run in runs:
        for key, value in run["mean"].items():
            transform, width = key.split("/")
            suffix = "" if transform == "none" else f" + {transform}"
            yield {"variant": run["variant"] + suffix, "width": int(width), "value": value * 100}


def summary(runs: list[dict[str, Any]]) -> pd.DataFrame:
    """Return mean scores in points by variant and width, with the spread over seeds."""
    frame = pd.DataFrame(_rows(runs))
    grouped = frame.groupby(["variant", "width"])["value"]
    text = grouped.agg(lambda x: f"{x.mean():.2f} ±{np.std(x, ddof=min(1, len(x) - 1)):.2f}")
    return text.unstack("width")


if __name__ == "__main__":
    main()
