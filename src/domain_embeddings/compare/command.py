"""The command itself: plan, run what is missing, report."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from domain_embeddings.compare import execute
from domain_embeddings.compare.execute import Execution, Outcome
from domain_embeddings.compare.plan import Cell, Project, parse_seeds, parse_settings, plan_cells
from domain_embeddings.core.errors import DataError, ParameterError

if TYPE_CHECKING:
    from domain_embeddings.compare.gather import Server
    from domain_embeddings.core.reporting.comparison import Comparison

logger = logging.getLogger(__name__)

REPORTS = "08_reporting/comparison"
# Tags of the runs of a comparison; the UI nests runs under their parent.
COMPARISON, SETTING, PARENT = "comparison", "comparison.setting", "mlflow.parentRunId"
ROLE = "comparison.role"


@dataclass(frozen=True)
class Request:
    """What `kedro compare` was asked.

    Args:
        methods: Methods, separated by commas.
        seeds: Seeds, separated by commas.
        variants: ``name:key=value;key=value``.
        runs: Ids of MLflow runs, separated by commas.
        query: A filter of MLflow runs; None if none was given.
        name: Name of the comparison; None for one made of the settings.
        width: Width at which settings are compared in pairs; None for the usual one.
        fresh: Whether everything is computed anew.
    """

    methods: str = ""
    seeds: str = "0"
    variants: Sequence[str] = ()
    runs: str = ""
    query: str | None = None
    name: str | None = None
    width: int | None = None
    fresh: bool = False

    @property
    def of_tracked_runs(self) -> bool:
        """Whether existing MLflow runs are compared."""
        return bool(self.runs) or self.query is not None


def compare(project: Project, request: Request, say: Callable[[str], None]) -> int:
    """Do what `kedro compare` was asked.

    Args:
        project: The project.
        request: What is wanted.
        say: Prints a line.

    Returns:
        Exit code: 1 if a run failed.

    Raises:
        ParameterError: The request is not valid; nothing was run.
        DataError: There is nothing to compare.
    """
    if request.of_tracked_runs:
        return _compare_tracked(project, request, say)
    return _compare_cells(project, request, say)


@dataclass(frozen=True)
class Target:
    """Where a report goes.

    Args:
        project: The project.
        name: Name of the comparison.
        width: Width of the pairwise comparison; None for the usual one.
        say: Prints a line.
    """

    project: Project
    name: str
    width: int | None
    say: Callable[[str], None]

    @property
    def folder(self) -> Path:
        """Folder of the report."""
        return self.project.data / REPORTS / self.name

    def write(self, comparison: Comparison, server: Server | None) -> list[Path]:
        """Write report and tables, and say what came out."""
        from domain_embeddings.core.reporting.comparison import chosen_width
        from domain_embeddings.core.reporting.comparison_page import answer, render_comparison

        at = chosen_width(comparison.widths, self.width)
        self.folder.mkdir(parents=True, exist_ok=True)
        page, scores, differences, runs = (
            self.folder / file
            for file in ("comparison.html", "scores.parquet", "differences.parquet", "runs.json")
        )
        ids = [run.run_id for run in comparison.runs]
        overlays = server.overlays(ids) if server else []
        text = render_comparison(comparison, self.name, at, overlays)
        page.write_text(text, encoding="utf-8")
        comparison.score_table().to_parquet(scores)
        comparison.difference_table().to_parquet(differences)
        listed = [
            {"setting": run.variant, "seed": run.seed, "run_id": run.run_id, "version": run.version}
            for run in comparison.runs
        ]
        runs.write_text(json.dumps(listed, indent=1), encoding="utf-8")
        self.say(f"\n{answer(comparison, comparison.ranking(at), at)}\n\nreport  {page}")
        return [page, scores, differences, runs]


def _compare_cells(project: Project, request: Request, say: Callable[[str], None]) -> int:
    """Run what is missing, and compare all of it."""
    settings = parse_settings(request.methods, request.variants)
    cells = plan_cells(project, settings, parse_seeds(request.seeds))
    # A variant may change the widths; to find that out after the runs would be late.
    widths = [
        width
        for width in project.parameters.widths
        if all(width in cell.parameters.widths for cell in cells)
    ]
    if request.width is not None and request.width not in widths:
        msg = f"--width: {request.width}; allowed: {', '.join(map(str, widths))}"
        raise ParameterError(msg)
    name = _name(request, "-".join(setting.name for setting in settings))
    target = Target(project, name, request.width, say)
    tracker = Tracker.open(project, name)
    with tracker.closing() as closing:
        outcome = Execution(
            project=project,
            folder=target.folder,
            environment=os.environ,
            tags=tracker.tags,
            say=say,
            fresh=request.fresh,
            runner=execute.run_kedro,
        ).run(cells)
        execute.require_some(outcome)
        tracker.gather(outcome)
        tracker.log(target.write(_comparison(project, outcome, tracker), tracker.server))
        closing.failed = bool(outcome.failed)
    for failed, reason in outcome.failed:
        say(f"FAILED  {failed}: {reason}")
    if outcome.failed:
        say("The same command tries again what failed and keeps what is done.")
    return int(bool(outcome.failed))


def _comparison(project: Project, outcome: Outcome, tracker: Tracker) -> Comparison:
    """Compare the finished cells."""
    from domain_embeddings.compare.gather import from_catalog
    from domain_embeddings.core.reporting.comparison import compare_runs

    runs = [
        from_catalog(project, cell, record, tracker.link(record.run_id))
        for cell, record in outcome.done
    ]
    confidence = project.parameters.evaluation.confidence
    return compare_runs(runs, confidence, failures=outcome.failed)


def _compare_tracked(project: Project, request: Request, say: Callable[[str], None]) -> int:
    """Compare existing MLflow runs."""
    if request.methods or request.variants:
        msg = "--runs and --filter compare runs that exist; allowed: without --methods, --variant"
        raise ParameterError(msg)
    if request.runs and request.query is not None:
        msg = "--runs, --filter: either names the runs; allowed: one of the two"
        raise ParameterError(msg)
    ids = [part.strip() for part in request.runs.split(",") if part.strip()]
    if request.runs and (not ids or len({*ids}) < len(ids)):
        msg = f"--runs: '{request.runs}'; allowed: different ids of runs, for example id1,id2"
        raise ParameterError(msg)
    from domain_embeddings.compare.gather import Server, from_mlflow
    from domain_embeddings.core.reporting.comparison import compare_runs

    server = Server.of(project)
    if server is None:
        msg = "--runs, --filter: the tracking server is not reachable, see the warning above"
        raise DataError(msg)
    with tempfile.TemporaryDirectory() as folder:
        runs, notes = from_mlflow(server, ids, request.query or "", Path(folder))
    say(f"{len(runs)} runs: {', '.join(f'{run.variant} (seed {run.seed})' for run in runs)}")
    comparison = compare_runs(runs, project.parameters.evaluation.confidence, notes)
    Target(project, _name(request, "runs"), request.width, say).write(comparison, server)
    return 0


def _name(request: Request, default: str) -> str:
    """Return the name of the folder; a name that is a path would write elsewhere.

    Raises:
        ParameterError: If the given name is not a plain one.
    """
    name = default[:80] if request.name is None else request.name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name):
        msg = f"--name: '{name}'; allowed: letters, digits and - _ . +"
        raise ParameterError(msg)
    return name


# ---------------------------------------------------------------------------------------- MLflow


@dataclass
class _Closing:
    failed: bool = True


@dataclass(frozen=True)
class Tracker:
    """One MLflow run per comparison, under which the UI shows those of its cells.

    A server that fails costs a warning: the results are in the catalog.

    Args:
        name: Name of the comparison.
        server: The tracking server; None if it cannot be reached.
        parent: Id of the run of the comparison; empty if nothing is tracked.
    """

    name: str
    server: Server | None = None
    parent: str = ""

    @staticmethod
    def open(project: Project, name: str) -> Tracker:
        """Open the run of a comparison, that of an earlier attempt where there is one."""
        from domain_embeddings.compare.gather import Server

        server = Server.of(project)
        if server is None:
            return Tracker(name)
        try:
            query = f"tags.{COMPARISON} = '{name}' and tags.`{ROLE}` = 'parent'"
            earlier = server.client.search_runs([server.experiment], query, max_results=1)
            if earlier:
                parent = earlier[0].info.run_id
                server.client.update_run(parent, status="RUNNING")
            else:
                tags = {COMPARISON: name, ROLE: "parent"}
                title = f"comparison {name}"
                run = server.client.create_run(server.experiment, tags=tags, run_name=title)
                parent = run.info.run_id
        # Which errors a server, its database or its file system answers with is not documented.
        except Exception as error:
            logger.warning("The comparison is not tracked: %s", error)
            return Tracker(name)
        return Tracker(name, server, parent)

    def tags(self, cell: Cell) -> Mapping[str, str]:
        """Return the tags that the run of a cell starts with."""
        own = {COMPARISON: self.name, SETTING: cell.setting.name}
        return {**own, PARENT: self.parent} if self.parent else own

    def link(self, run_id: str) -> str:
        """Return the address of a run in the UI; empty without a server."""
        return self.server.link(run_id) if self.server else ""

    def gather(self, outcome: Outcome) -> None:
        """Put runs that were there already under this comparison too."""
        for cell, record in outcome.done:
            for key, value in self.tags(cell).items():
                if record.run_id:
                    self._try("set_tag", record.run_id, key, value)

    def log(self, files: Sequence[Path]) -> None:
        """Keep the report with the run of the comparison."""
        for file in files:
            self._try("log_artifact", self.parent, str(file))

    @contextmanager
    def closing(self) -> Iterator[_Closing]:
        """Close the run of the comparison, whatever happens."""
        closing = _Closing()
        status = "FAILED"
        try:
            yield closing
            status = "FAILED" if closing.failed else "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            logger.warning("Stopped. The same command goes on from what is done.")
            raise
        finally:
            self._try("set_terminated", self.parent, status)

    def _try(self, method: str, *arguments: str) -> None:
        """Call a method of the client; a failing server is worth a warning."""
        if self.server is None:
            return
        try:
            getattr(self.server.client, method)(*arguments)
        except Exception as error:
            logger.warning("MLflow failed in %s of the comparison: %s", method, error)
