"""What a study trains and scores on: the stages up to `reze`, held in memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from domain_embeddings.core.bundle import Bundle
from domain_embeddings.core.encoders.loading import load_encoder
from domain_embeddings.core.tasks.records import RawTasks
from domain_embeddings.core.tasks.spec import parse_specs
from domain_embeddings.core.training.train import train
from domain_embeddings.datasets.memmap_bundle import MemmapBundleDataset
from domain_embeddings.parameters import Parameters, check_parameters
from domain_embeddings.pipelines.curation import nodes as curation
from domain_embeddings.pipelines.evaluation import nodes as evaluation
from domain_embeddings.pipelines.relations.nodes import encode_relations
from domain_embeddings.pipelines.reze import nodes as reze

INPUTS = ("reference_model", "training_pairs", "task_specs", "relation_vectors", "shrinkage")
# Probes and transforms keep one seed, so that runs of a study differ by their training only.
PROBE_SEED = 0


@dataclass(frozen=True)
class World:
    """Inputs of a study.

    Args:
        inputs: The entries that `train` takes, in its order.
        tasks: Records of the evaluated tasks.
        raw: Parameters that variants change.
    """

    inputs: Mapping[str, Any]
    tasks: pd.DataFrame
    raw: Mapping[str, Any]

    def parameters(self, changes: Mapping[str, Any]) -> Parameters:
        """Return the parameters of a variant."""
        return check_parameters(merge(self.raw, changes))

    def train(self, p: Parameters, seed: int) -> tuple[Any, dict[str, Any]]:
        """Train one variant with one seed; returns the model and costs."""
        start = time.monotonic()
        # Checkpoints and dev scores of a run are not needed here, nor are mined negatives.
        model, _, report = train(
            *self.inputs.values(), parameters=p.training, widths=p.widths, seed=seed
        )
        costs = {"train_s": time.monotonic() - start, "pairs_per_s": report.get("pairs_per_s")}
        return model, costs

    def embed(self, model: Any, p: Parameters) -> Bundle:
        """Encode every text that scoring needs, once."""
        pairs, specs = self.inputs["training_pairs"], self.inputs["task_specs"]
        return evaluation.embed_adapted(
            model, self.tasks, pairs, specs, p.evaluation, p.widths, PROBE_SEED
        )

    def score(self, banks: Mapping[str, Bundle], p: Parameters) -> pd.DataFrame:
        """Score models side by side, with paired differences to the one called reference."""
        from domain_embeddings.core.encoders.bank import EmbeddingBank
        from domain_embeddings.core.evaluation.sampling import sample_pairs
        from domain_embeddings.core.evaluation.scores import SweepSettings, sweep

        pairs, specs = self.inputs["training_pairs"], self.inputs["task_specs"]
        settings = SweepSettings(
            widths=p.widths,
            transforms=p.evaluation.transforms,
            replicates=p.evaluation.bootstrap,
            confidence=p.evaluation.confidence,
            seed=PROBE_SEED,
            split=p.evaluation.split,
        )
        scores, _ = sweep(
            {name: EmbeddingBank(bank) for name, bank in banks.items()},
            evaluation._tasks(self.tasks, specs, p.evaluation, PROBE_SEED),
            specs,
            sample_pairs(pairs, p.evaluation.fit_pairs, PROBE_SEED),
            settings,
        )
        return scores


def from_catalog(env: str, fixed: Mapping[str, Any]) -> World:
    """Read what ``kedro run --pipelines=ingestion,curation,relations,reze`` has made.

    Args:
        env: Kedro environment.
        fixed: Parameters that hold for all variants.
    """
    bootstrap_project(Path.cwd())
    with KedroSession.create(Path.cwd(), env=env) as session:
        context = session.load_context()
        raw = merge(dict(context.config_loader["parameters"]), fixed)
        load = context.catalog.load
        inputs = {name: load(name) for name in INPUTS}
        records, leakage = load("curated_records"), load("leakage_report")
    p = check_parameters(raw)
    tasks = curation.select_evaluation_tasks(
        records, inputs["task_specs"], leakage, p.curation, p.evaluation
    )
    return World(inputs, tasks, raw)


def from_tasks(  # noqa: PLR0913, PLR0917 - what the catalog would say
    path: Path,
    data: Path,
    hold_out: float,
    model: str,
    max_length: int,
    fixed: Mapping[str, Any],
) -> World:
    """Build everything from a list of task specs.

    Args:
        path: YAML list of task specs (docs/data_formats.md).
        data: Folder that their files are relative to.
        hold_out: Share of the training rows that becomes the dev split of a task without one; 0
            leaves tasks as they are.
        model: Source of the reference model.
        max_length: Longest input in tokens.
        fixed: Parameters that hold for all variants.
    """
    raw = merge(_base_parameters(), merge({"curation": {"leakage": "drop"}}, fixed))
    p = check_parameters(raw)
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    specs = parse_specs([_with_dev(task, hold_out) for task in listed])
    records, _ = RawTasks(tuple(specs), data).read()
    task_specs = [spec.model_dump(mode="json") for spec in specs]
    records, _ = curation.curate_records(records, task_specs, p.curation)
    leakage = curation.find_leakage(records, task_specs)
    pairs, _ = curation.build_training_pairs(records, task_specs, leakage, p.curation, PROBE_SEED)
    tasks = curation.select_evaluation_tasks(records, task_specs, leakage, p.curation, p.evaluation)
    reference = load_encoder(model, max_length=max_length)
    vectors = _on_disk(encode_relations(reference, pairs, task_specs, p.relations))
    values = (reference, pairs, task_specs, vectors, _shrinkage(vectors, p))
    return World(dict(zip(INPUTS, values, strict=True)), tasks, raw)


def _with_dev(task: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Split the training file of a task without dev rows, and leave its test rows out."""
    files = task.get("files", {})
    if not share or "dev" in files or "train" not in files:
        return dict(task)
    split = {"all": files["train"], "split": {"dev": share, "test": 0.0}}
    return {**task, "files": split}


def _base_parameters() -> dict[str, Any]:
    """Return the parameters as they are committed."""
    merged: dict[str, Any] = {}
    for path in sorted(Path("conf/base/parameters").glob("*.yml")):
        merged |= yaml.safe_load(path.read_text(encoding="utf-8"))
    # Its folder is named by a resolver of Kedro's, and a study has no use for kept vectors.
    merged["evaluation"]["store"] = None
    return merged


def _on_disk(vectors: Bundle) -> Bundle:
    """Write streamed vectors and map them back."""
    folder = tempfile.mkdtemp(prefix="study_")
    dataset = MemmapBundleDataset(filepath=f"{folder}/relation_vectors")
    dataset.save(vectors)
    return dataset.load()


def _shrinkage(vectors: Bundle, p: Parameters) -> Bundle:
    """Run the stage `reze`."""
    moments = reze.accumulate_moments(vectors, p.reze)
    eigenspace = reze.decompose(moments, p.reze)
    variance = reze.measure_task_variance(moments, eigenspace, p.reze)
    return reze.fit_shrinkage(eigenspace, variance, p.reze)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; changes win."""
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
        merged[key] = merge(base[key], value) if nested else value
    return merged
