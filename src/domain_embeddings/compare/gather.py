"""Bring the results of runs together: from the catalog, or from the artifacts of MLflow runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from domain_embeddings.compare.execute import RESULTS
from domain_embeddings.compare.plan import Cell, Project
from domain_embeddings.core.errors import DataError
from domain_embeddings.core.reporting.comparison import ScoredRun
from domain_embeddings.hooks import flatten
from domain_embeddings.records import RunRecord

UI = "http://127.0.0.1:5000"
# Parameters that say how a run was made, not what was run.
_NO_SETTING = ("seed", "training.resume")
_NO_SETTINGS = ("training.checkpoints.", "training.launch.", "relations.launch.", "reporting.")
_MAX_RUNS = 200


def from_catalog(project: Project, cell: Cell, record: RunRecord, link: str) -> ScoredRun:
    """Read the results of a cell.

    Args:
        project: The project.
        cell: The cell.
        record: Record of its run.
        link: Address of the run in the MLflow UI.

    Returns:
        The run.
    """
    paths = {name: project.path(name, record.saved[name]) for name in RESULTS}
    return ScoredRun(
        variant=cell.setting.name,
        seed=cell.seed,
        **_read(paths),
        parameters=flatten(record.parameters),
        run_id=record.run_id,
        version=record.version,
        link=link,
    )


def _read(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Read the four files of a run; only the replicates may be missing."""
    from domain_embeddings.datasets.safetensors_bundle import SafetensorsBundleDataset

    replicates = paths.get("score_replicates")
    report = paths["training_report"].read_text(encoding="utf-8")
    return {
        "scores": pd.read_parquet(paths["truncation_scores"]),
        "geometry": pd.read_parquet(paths["geometry_scores"]),
        "training": json.loads(report),
        "replicates": replicates and SafetensorsBundleDataset(filepath=str(replicates)).load(),
    }


@dataclass(frozen=True)
class Server:
    """The tracking server of the project, as it is configured.

    Args:
        uri: Its URI.
        experiment: Id of the project's experiment.
    """

    uri: str
    experiment: str

    @staticmethod
    def of(project: Project) -> Server | None:
        """Return the server of a project; None if it could not be reached."""
        experiment = project.mlflow and getattr(
            project.mlflow.tracking.experiment, "_experiment", None
        )
        if experiment is None:
            return None
        return Server(project.mlflow.server.mlflow_tracking_uri, experiment.experiment_id)

    @property
    def client(self) -> Any:
        """Return a client of it."""
        from mlflow import MlflowClient

        return MlflowClient(self.uri)

    def link(self, run_id: str, experiment: str | None = None) -> str:
        """Return the address of a run in the UI; empty for a run that was not tracked."""
        host = self.uri.rstrip("/") if self.uri.startswith("http") else UI
        place = f"{host}/#/experiments/{experiment or self.experiment}"
        return f"{place}/runs/{run_id}" if run_id else ""

    def overlays(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return titles and addresses of the UI's own pages about several runs."""
        tracked = [run_id for run_id in ids if run_id]
        if not tracked:
            return []
        host, place = self.link("-").split("/#/")[0], _in_url([self.experiment])
        common = f"runs={_in_url(tracked)}&experiments={place}"
        series = "score_by_width/mean"
        shown = f"plot_metric_keys={_in_url([series])}&x_axis=step&show_point=true"
        curves = f"metric={_in_url(series)}&{shown}"
        return [
            ("parameters and scores side by side", f"{host}/#/compare-runs?{common}"),
            ("quality by width, overlaid", f"{host}/#/metric?{common}&{curves}"),
        ]


def _in_url(value: Any) -> str:
    """Write a value as the UI's addresses hold it."""
    return quote(json.dumps(value, separators=(",", ":")), safe="")


def from_mlflow(
    server: Server, ids: Sequence[str], query: str, folder: Path
) -> tuple[list[ScoredRun], list[str]]:
    """Read the results of MLflow runs, by id or by filter.

    Args:
        server: The tracking server.
        ids: Ids of runs; they have to be finished and complete.
        query: A filter of MLflow, for example ``params.training.method = 'mic'``; of several runs
            of one setting and seed the newest is taken.
        folder: Empty folder for their files.

    Returns:
        The runs, and notes about what was left out.

    Raises:
        DataError: There is no such run, or it lacks what is compared.
    """
    client = server.client
    found = _by_id(client, ids) if ids else _by_filter(client, server.experiment, query)
    notes = []
    runs: list[ScoredRun] = []
    lacking = 0
    for run in found:
        paths = _download(client, run.info.run_id, folder)
        missing = [name for name in RESULTS if name not in paths and name != "score_replicates"]
        if missing and ids:
            msg = (
                f"--runs: {run.info.run_id} has no artifact {', '.join(missing)}; allowed: "
                "finished runs of training, evaluation and reporting"
            )
            raise DataError(msg)
        if missing:
            lacking += 1
            continue
        address = server.link(run.info.run_id, run.info.experiment_id)
        runs.append(_scored(run, _read(paths), address))
    if lacking:
        notes.append(f"{lacking} runs that the filter finds have no scores and are left out.")
    runs = named_by_setting(runs)
    if not ids:
        runs, dropped = _newest(runs)
        if dropped:
            notes.append(f"{dropped} older runs of the same setting and seed are left out.")
    if not runs:
        msg = f"--filter: no finished run with scores matches {query!r}"
        raise DataError(msg)
    return runs, notes


def _by_id(client: Any, ids: Sequence[str]) -> list[Any]:
    """Find runs by their ids, or by the beginning of them."""
    from mlflow.exceptions import MlflowException

    runs = []
    for run_id in ids:
        try:
            run = client.get_run(run_id)
        except MlflowException:
            msg = f"--runs: MLflow knows no run '{run_id}'; allowed: whole ids, as make ui shows"
            raise DataError(msg) from None
        if run.info.status != "FINISHED":
            msg = f"--runs: {run_id} is {run.info.status}; allowed: finished runs"
            raise DataError(msg)
        runs.append(run)
    return runs


def _by_filter(client: Any, experiment: str, query: str) -> list[Any]:
    """Find finished runs by a filter, the newest first."""
    from mlflow.exceptions import MlflowException

    finished = "attributes.status = 'FINISHED'"
    try:
        return list(
            client.search_runs(
                [experiment],
                f"{query} and {finished}" if query.strip() else finished,
                max_results=_MAX_RUNS,
                order_by=["attributes.start_time DESC"],
            )
        )
    except MlflowException as error:
        msg = f"--filter: {' '.join(str(error).split())}"
        raise DataError(msg) from None


def _download(client: Any, run_id: str, folder: Path) -> dict[str, Path]:
    """Fetch the files of a run that are there."""
    files = {Path(item.path).stem: item.path for item in client.list_artifacts(run_id)}
    target = folder / run_id
    target.mkdir(parents=True, exist_ok=True)
    return {
        name: Path(client.download_artifacts(run_id, files[name], str(target)))
        for name in RESULTS
        if name in files
    }


def _scored(run: Any, results: Mapping[str, Any], address: str) -> ScoredRun:
    parameters = dict(run.data.params)
    return ScoredRun(
        variant=run.data.tags.get("comparison.setting")
        or str(results["training"].get("method", "unknown")),
        seed=int(parameters.get("seed", 0)),
        **results,
        parameters=parameters,
        run_id=run.info.run_id,
        version=run.data.tags.get("saved.truncation_scores", ""),
        link=address,
    )


def named_by_setting(runs: Sequence[ScoredRun]) -> list[ScoredRun]:
    """Give runs of different parameters different names.

    Args:
        runs: Runs that are named by their method, or by the setting of a comparison.

    Returns:
        The same runs; where several settings have one name, what they differ in follows it.
    """
    settings = [_setting(run.parameters) for run in runs]
    named = []
    for run, own in zip(runs, settings, strict=True):
        others = [
            other
            for namesake, other in zip(runs, settings, strict=True)
            if namesake.variant == run.variant
        ]
        differing = [
            key
            for key in dict.fromkeys(key for other in others for key in other)
            if len({other.get(key) for other in others}) > 1
        ]
        suffix = ", ".join(f"{key.removeprefix('training.')} {own.get(key)}" for key in differing)
        named.append(replace(run, variant=f"{run.variant} ({suffix})" if suffix else run.variant))
    return named


def _setting(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Select the parameters that make a setting."""
    return {
        key: value
        for key, value in parameters.items()
        if key not in _NO_SETTING and not key.startswith(_NO_SETTINGS)
    }


def _newest(runs: Sequence[ScoredRun]) -> tuple[list[ScoredRun], int]:
    """Keep the first run of every setting and seed, and count the others."""
    kept: dict[tuple[str, int], ScoredRun] = {}
    for run in runs:
        kept.setdefault((run.variant, run.seed), run)
    return list(kept.values()), len(runs) - len(kept)
