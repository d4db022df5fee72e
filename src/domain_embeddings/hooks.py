"""What happens around a run: parameters are checked, figures are tracked, the answer is printed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import AbstractVersionedDataset, CatalogProtocol
from kedro.io.core import VersionNotFoundError
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node

from domain_embeddings.core.errors import DataError, GateError, ParameterError, user_error
from domain_embeddings.core.training.checkpoints import remove_checkpoints, require_writable
from domain_embeddings.core.training.memory import peak_memory_mib
from domain_embeddings.parameters import Parameters, check_parameters
from domain_embeddings.records import FOLDER, RunRecord, inputs_digest, write_record

logger = logging.getLogger(__name__)

MAX_TAG = 5_000
MAX_REASON = 200
# A tracking server is not asked again in the same run once it fails this often in a row,
GIVE_UP_AFTER = 3
# fails after that many seconds, which means that it does not answer at all (settings.py bounds how
# long one request waits),
HUNG_SECONDS = 5.0
# or has taken that many seconds of the run in all.
MAX_SECONDS = 120.0
PLOTS = (
    "quality_by_dimension",
    "quality_picture",
    "quality_by_bytes",
    "eigen_spectrum",
    "task_variance_plot",
    "relation_map",
    "loss_curves",
)
ARTIFACTS = (
    *PLOTS,
    "ingestion_report",
    "curation_report",
    "leakage_report",
    "pairing_report",
    "negatives_report",
    "training_report",
    "training_history",
    "truncation_scores",
    "score_replicates",
    "vector_costs",
    "geometry_scores",
    "mteb_scores",
    "width_recommendation",
    "adaptation_report",
    "model_card",
    "export_report",
)


def _kedro_mlflow_hook() -> Any:
    """Return a fresh kedro-mlflow hook, which keeps its progress to itself."""
    from kedro_mlflow.framework.hooks.mlflow_hook import MlflowHook

    # The package sets its own level when it is imported, whatever the logging configuration says.
    logging.getLogger("kedro_mlflow").setLevel(logging.WARNING)
    return MlflowHook()


class ParametersHook:
    """Check all parameters and inputs together, before the first node.

    Its hooks come first, so that a refused run is not one that MLflow has opened already.
    """

    @hook_impl(tryfirst=True)
    def after_context_created(self, context: KedroContext) -> None:
        """Validate the merged parameters.

        Raises:
            ParameterError: Listing every offending key.
        """
        self.parameters = check_parameters(dict(context.config_loader["parameters"]))

    @hook_impl(tryfirst=True)
    def before_pipeline_run(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        """Refuse missing inputs, a folder nobody can write to, widths the model does not have.

        Raises:
            DataError: Naming the missing entries and the stages that make them.
            ParameterError: Naming the key and what is allowed.
        """
        self._trains = _trains(pipeline)
        _require_inputs(pipeline, catalog)
        if self.parameters.evaluation.max_general_drop is not None:
            _require_general_task(pipeline, catalog)
        training = self.parameters.training
        if training.saves and self._trains:
            require_writable(training.checkpoints.folder)
        _require_mteb_data(pipeline, self.parameters)
        if "reference_model" not in pipeline.inputs():
            return
        model_width = catalog.get("reference_model").width()
        widest = self.parameters.widths[-1]
        if model_width is not None and widest > model_width:
            msg = f"widths: {widest} is wider than the model; allowed: 1 to {model_width}"
            raise ParameterError(msg)
        if self._trains:
            from domain_embeddings.core.training.checks import check_training

            check_training(training, self.parameters.widths, catalog.get("reference_model").source)

    @hook_impl(tryfirst=True)
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Refuse a batch that the pairs cannot fill, once there are pairs.

        Raises:
            ParameterError: Naming the key and what is allowed.
        """
        if dataset_name == "training_pairs" and self._trains:
            from domain_embeddings.core.training.checks import check_batch

            check_batch(self.parameters.training, len(data))


def _trains(pipeline: Pipeline) -> bool:
    return any("adapted_model" in node.outputs for node in pipeline.nodes)


def _require_mteb_data(pipeline: Pipeline, parameters: Parameters) -> None:
    """Refuse mteb's own tasks without data now, rather than after training."""
    own = parameters.evaluation.mteb
    if not own.wanted or "mteb_scores" not in pipeline.all_outputs():
        return
    from domain_embeddings.core.evaluation.mteb_tasks import require_data, select_tasks

    require_data(select_tasks(own))


def _require_inputs(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Refuse to start from entries that no earlier run has made."""
    names = [name for name in sorted(pipeline.inputs()) if not name.startswith("param")]
    missing = [name for name in names if name in catalog and not catalog.exists(name)]
    if not missing:
        return
    from domain_embeddings.pipeline_registry import ON_REQUEST, STAGES

    stages = [
        stage.__name__.rpartition(".")[2]
        for stage in (*STAGES, *ON_REQUEST)
        if stage.create_pipeline().all_outputs() & set(missing)
    ]
    msg = (
        f"{', '.join(missing)}: not there in the version asked for. Run first what makes it: "
        f"--pipelines={','.join(stages)}, or everything: --pipelines=domain_adapt"
    )
    raise DataError(msg)


def _require_general_task(pipeline: Pipeline, catalog: CatalogProtocol) -> None:
    """Refuse a limit on the loss of general quality where nothing will measure it."""
    from domain_embeddings.core.reporting.retention import NO_GENERAL_TASK

    inputs = pipeline.inputs()
    if "raw_tasks" in inputs:
        general = any(spec.general for spec in catalog.load("raw_tasks").specs)
    else:
        specs = catalog.load("task_specs") if "task_specs" in inputs else []
        general = not specs or any(spec.get("general", False) for spec in specs)
    if not general:
        raise ParameterError(NO_GENERAL_TASK)


class TrackingHook:
    """One MLflow run per `kedro run`, with everything a person would compare runs by.

    kedro-mlflow opens and closes the run; it is called from here, not registered as a plugin,
    because it would log a typed parameter section as one long string; parameters are logged flat
    instead. A tracking server that is down costs the tracking and a warning, never the run and
    never a figure: all of them are catalog entries.
    """

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Set MLflow up and keep the raw parameters."""
        self._failures = 0
        self._seconds = 0.0
        self._given_up = False
        self._ready = True
        self._mlflow = _kedro_mlflow_hook()
        self._raw_parameters = dict(context.config_loader["parameters"])
        self._ready = self._track(self._mlflow.after_context_created, context)

    @hook_impl
    def before_pipeline_run(
        self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        """Open the run and log parameters, versions and the commit."""
        self._started = time.monotonic()
        self._catalog = catalog
        self._track(self._mlflow.before_pipeline_run, run_params, pipeline, catalog)
        # Without an open run MLflow would start one of its own at the first tag.
        self._ready = self._ready and _run_is_open()
        if not self._ready and self._mlflow._is_mlflow_enabled:
            logger.warning("This run is not tracked; its figures are kept in the catalog.")
        parameters = Parameters.model_validate(self._raw_parameters)
        self._track(_log_parameters, parameters.model_dump(mode="json"), run_params)
        if _trains(pipeline):
            # What a person looks for in a list of runs, more than the name of the pipeline.
            self._track(_set_tag, "mlflow.runName", _run_name(parameters))

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str) -> None:
        """Record which version of an entry was loaded."""
        version = _version(self._catalog, dataset_name, "resolve_load_version")
        if version:
            self._track(_set_tag, f"loaded.{dataset_name}", version)

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Record the saved version, and the figures and artifacts of the entries that have some."""
        version = _version(self._catalog, dataset_name, "resolve_save_version")
        if version:
            self._track(_set_tag, f"saved.{dataset_name}", version)
        log = METRICS.get(dataset_name)
        if log is not None:
            self._track(_log_metrics, list(log(data)))
        if dataset_name in ARTIFACTS:
            self._track(_log_artifact, self._path(dataset_name))
        if dataset_name == "mlflow_models":
            self._track(_log_models, self._path(dataset_name))

    @hook_impl
    def after_pipeline_run(
        self, run_params: dict[str, Any], pipeline: Pipeline, catalog: CatalogProtocol
    ) -> None:
        """Log what the run cost and close it."""
        cost = [
            ("wall_seconds", time.monotonic() - self._started, 0),
            ("peak_memory_mib", peak_memory_mib(), 0),
        ]
        self._track(_log_metrics, cost)
        self._close(self._mlflow.after_pipeline_run, run_params, pipeline, catalog)

    @hook_impl
    def on_pipeline_error(
        self,
        error: Exception,
        run_params: dict[str, Any],
        pipeline: Pipeline,
        catalog: CatalogProtocol,
    ) -> None:
        """Leave the run FAILED, with the reason as a tag."""
        self._track(_set_tag, "error", str(user_error(error) or error)[:MAX_TAG])
        self._close(self._mlflow.on_pipeline_error, error, run_params, pipeline, catalog)

    def _close(self, function: Any, *arguments: Any) -> None:
        """Close the run even if the server was given up: a later run must not find it open."""
        self._given_up = False
        self._track(function, *arguments)

    def _track(self, function: Any, *arguments: Any) -> bool:
        """Call an MLflow function; a failing server is worth a warning, never the run.

        Returns:
            Whether the call was made and succeeded.
        """
        enabled = self._ready and self._mlflow._is_mlflow_enabled
        if not enabled or self._given_up:
            return False
        started = time.monotonic()
        failed = False
        try:
            function(*arguments)
        # Which errors a server, its database or its file system answers with is not documented.
        except Exception as error:
            failed = True
            logger.warning("MLflow failed in %s: %s", function.__name__, _reason(error))
        seconds = time.monotonic() - started
        self._failures = self._failures + 1 if failed else 0
        self._seconds += seconds
        hung = failed and seconds >= HUNG_SECONDS
        if self._failures >= GIVE_UP_AFTER or hung or self._seconds >= MAX_SECONDS:
            self._given_up = True
            logger.warning(
                "MLflow is not asked again; the figures are kept in the catalog. It took %.0f "
                "seconds of this run.",
                self._seconds,
            )
        return not failed

    def _path(self, name: str) -> Path:
        dataset = self._catalog.get(name)
        return Path(str(dataset._get_versioned_path(dataset.resolve_save_version())))


def _version(catalog: CatalogProtocol, name: str, resolve: str) -> str | None:
    """Return the version that an entry was loaded or saved in; None for one without versions."""
    dataset = catalog.get(name) if name in catalog else None
    if isinstance(dataset, AbstractVersionedDataset):
        version: str | None = getattr(dataset, resolve)()
        return version
    return None


def _reason(error: Exception) -> str:
    """Return the beginning of an error's message on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]} ..."


class RecordHook:
    """Leave a record of every run, by which `kedro compare` finds results again."""

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Keep the configuration; not every command that reads it runs something."""
        self._loader, self._project = context.config_loader, Path(context.project_path)

    @hook_impl
    def before_pipeline_run(self, catalog: CatalogProtocol) -> None:
        """Note parameters, inputs and the place of the records; start without any version."""
        loader = self._loader
        self._folder = self._project / loader["globals"]["data"] / FOLDER
        parameters = Parameters.model_validate(dict(loader["parameters"]))
        self._parameters = parameters.model_dump(mode="json")
        self._inputs = inputs_digest(loader["catalog"], self._project)
        self._started = time.monotonic()
        self._catalog = catalog
        self._loaded: dict[str, str] = {}
        self._saved: dict[str, str] = {}

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str) -> None:
        """Note which version was read."""
        version = _version(self._catalog, dataset_name, "resolve_load_version")
        if version and dataset_name not in self._saved:
            self._loaded[dataset_name] = version

    @hook_impl
    def after_dataset_saved(self, dataset_name: str) -> None:
        """Note which version was made."""
        version = _version(self._catalog, dataset_name, "resolve_save_version")
        if version:
            self._saved[dataset_name] = version

    # First, because the others close the MLflow run whose id is noted.
    @hook_impl(tryfirst=True)
    def after_pipeline_run(self, run_params: dict[str, Any]) -> None:
        """Keep the record of a run that came to its end."""
        self._write(run_params, finished=True)

    @hook_impl(tryfirst=True)
    def on_pipeline_error(self, run_params: dict[str, Any]) -> None:
        """Keep the record of a run that failed: what it made before that is there."""
        self._write(run_params, finished=False)

    def _write(self, run_params: dict[str, Any], *, finished: bool) -> None:
        record = RunRecord(
            version=run_params["run_id"],
            finished=finished,
            parameters=self._parameters,
            inputs=self._inputs,
            loaded=self._loaded,
            saved=self._saved,
            run_id=_open_run_id(),
            seconds=round(time.monotonic() - self._started, 3),
        )
        write_record(self._folder, record)


class CheckpointsHook:
    """Remove the checkpoints of a training once all that it made is in the catalog."""

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Clean up after the report, which is stored last and names the folder."""
        if dataset_name == "training_report" and data.get("checkpoints"):
            remove_checkpoints(data["checkpoints"]["folder"])


class SummaryHook:
    """End a run with its answer, and with where to look further."""

    @hook_impl
    def on_node_error(self, error: Exception, node: Node) -> None:
        """Name the node of an error that nobody foresaw; the others say what to correct."""
        if user_error(error) is None:
            logger.error("Node '%s' failed.", node.name)

    @hook_impl
    def before_pipeline_run(self, catalog: CatalogProtocol) -> None:
        """Start without an answer."""
        self._catalog = catalog
        self._answer: dict[str, Any] | None = None
        self._shipped: dict[str, Any] | None = None

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Keep the recommendation, or what was shipped."""
        if dataset_name == "width_recommendation":
            self._answer = data
        if dataset_name == "export_report":
            self._shipped = data

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """Print the same where a finished run misses a bar: everything was made and saved."""
        if isinstance(user_error(error), GateError):
            self.after_pipeline_run()

    @hook_impl
    def after_pipeline_run(self) -> None:
        """Print the closing table and the places of report, model and UI, or of what is shipped."""
        if self._shipped is not None:
            from domain_embeddings.core.reporting.console import render_export

            sys.stdout.write(f"\n{render_export(self._shipped)}\n")
        if self._answer is None:
            return
        from domain_embeddings.core.reporting.console import render

        report, model = (self._latest(name) for name in ("adaptation_report", "adapted_model"))
        sys.stdout.write(
            f"\n{render(self._answer)}\n"
            f"\nreport  {report}\nmodel   {model}\n"
            "runs    make ui    (MLflow on http://127.0.0.1:5000)\n"
            "lineage make viz\n"
        )

    def _latest(self, name: str) -> str:
        try:
            return str(self._catalog.get(name)._get_load_path())
        except VersionNotFoundError:
            return "(not made yet)"


Metric = tuple[str, float, int]
# Vectors as they come out of the model: the name of a metric does not say it.
PLAIN = ("none", "float32")


# What is tracked for every task; the names before the slash are sections of the UI, which sorts
# them: what sorts before `score_dim_16` pushes it out of sight on the page that compares runs.
SERIES = {
    "adapted": "score_by_width",
    "reference": "untouched_by_width",
    "adapted_minus_reference": "score_gain_by_width",
}
MTEB_SERIES = {"adapted": "score_mteb_by_width", "reference": "untouched_mteb_by_width"}
GEOMETRY_SERIES = {"adapted": "vectors_by_width", "reference": "vectors_untouched_by_width"}


def score_metrics(scores: pd.DataFrame) -> Iterator[Metric]:
    """Yield scores both as one metric per width and as one metric whose step is the width.

    Args:
        scores: `truncation_scores`.

    Yields:
        Name, value and step. The series lets the MLflow UI overlay quality by width of many runs:
        ``score_by_width/<task or mean>`` of the adapted model, ``untouched_by_width/...``,
        ``score_gain_by_width/...`` of their difference. Of everything else, such as vectors after a
        transform or in another precision, the mean is enough: every series is one more chart.
    """
    for row in scores[scores["main"]].itertuples():
        kind = [part for part in (row.transform, row.precision) if part not in PLAIN]
        section = SERIES.get(row.model)
        if section and not kind:
            yield f"{section}/{row.task}", row.value, row.width
        elif row.task == "mean":
            # A dot, because `..._pca` is the name of a comparison under no transform.
            yield f"score_other_by_width/{'.'.join([row.model, *kind])}", row.value, row.width
        if row.task == "mean" and row.model == "adapted" and not kind:
            yield f"score_dim_{row.width}", row.value, 0


def mteb_metrics(scores: pd.DataFrame) -> Iterator[Metric]:
    """Yield the scores of mteb's own tasks, with the width as step."""
    for row in scores.itertuples():
        yield f"{MTEB_SERIES.get(row.model, row.model)}/{row.task}", row.value, row.width


def history_metrics(history: pd.DataFrame) -> Iterator[Metric]:
    """Yield every component of the training history at its step."""
    for row in history.itertuples():
        yield f"train/{row.component}", row.value, row.step


def geometry_metrics(geometry: pd.DataFrame) -> Iterator[Metric]:
    """Yield geometry measures over all sources, with the width as step."""
    for row in geometry[geometry["source"] == "all"].itertuples():
        yield f"{GEOMETRY_SERIES.get(row.model, row.model)}/{row.measure}", row.value, row.width


def cost_metrics(costs: pd.DataFrame) -> Iterator[Metric]:
    """Yield size, speed and recall of every precision and search, with the width as step."""
    names = {
        "bytes_per_vector": "bytes",
        "queries_per_s": "queries_per_s",
        "recall": "recall_at_10",
    }
    for row in costs.to_dict("records"):
        kind = row["precision"] if row["search"] == "exact" else f"{row['precision']}.shortlist"
        for column, name in names.items():
            yield f"serving_by_width/{kind}.{name}", row[column], row["width"]


def report_metrics(report: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the figures of the training report."""
    for key, value in report.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"training/{key}", float(value), 0


METRICS = {
    "truncation_scores": score_metrics,
    "mteb_scores": mteb_metrics,
    "training_history": history_metrics,
    "geometry_scores": geometry_metrics,
    "vector_costs": cost_metrics,
    "training_report": report_metrics,
}


def flatten(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested parameters as one level with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _run_is_open() -> bool:
    return bool(_open_run_id())


def _open_run_id() -> str:
    """Return the id of the open MLflow run; empty if there is none."""
    # Importing MLflow takes seconds, and without it there is no run.
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None else None
    return "" if run is None else str(run.info.run_id)


def _run_name(parameters: Parameters) -> str:
    """Name a run that trains: as MLflow's own variable says, else by method and seed."""
    named = os.environ.get("MLFLOW_RUN_NAME")
    return named or f"{parameters.training.method}, seed {parameters.seed}"


def _log_parameters(parameters: dict[str, Any], run_params: dict[str, Any]) -> None:
    import mlflow

    mlflow.log_params(flatten(parameters))
    mlflow.set_tags({"git_commit": _commit(Path(run_params["project_path"])), **_versions()})


def _log_metrics(metrics: list[Metric]) -> None:
    """Log all figures of an entry in few requests."""
    import mlflow
    from mlflow.entities import Metric as MlflowMetric

    run = mlflow.active_run()
    now = int(time.time() * 1000)
    finite = [m for m in metrics if pd.notna(m[1])]
    batch = 1_000
    for start in range(0, len(finite), batch):
        mlflow.MlflowClient().log_batch(
            run.info.run_id,
            metrics=[
                MlflowMetric(name, float(value), now, int(step))
                for name, value, step in finite[start : start + batch]
            ],
        )


def _log_artifact(path: Path) -> None:
    import mlflow

    mlflow.log_artifact(str(path))


def _log_models(folder: Path) -> None:
    from domain_embeddings.pipelines.export.serving import log_mlflow_models

    log_mlflow_models(folder)


def _set_tag(name: str, value: str) -> None:
    import mlflow

    mlflow.set_tag(name, value)


def _commit(project: Path) -> str:
    """Return the commit of the project, with a mark if files differ from it; 'none' outside git."""
    command = ["git", "-C", str(project), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        return "none"
    return result.stdout.strip() or "none"


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    names = ("torch", "transformers", "sentence-transformers", "mteb", "kedro")
    return {f"version.{name}": version(name) for name in names}
