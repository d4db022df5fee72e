"""Run what is missing of a comparison, and find again what is there.

Every cell is a `kedro run` in a process of its own: its peak memory is its own, and one that runs
out of memory takes nothing else with it. What was done is found by the records that runs leave, so
the same command goes on where it was stopped, and a cell that any earlier `kedro run` has computed
with the same parameters from the same versions is not computed again.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from domain_embeddings.compare.plan import Cell, Project
from domain_embeddings.core.errors import DataError
from domain_embeddings.records import RunRecord

UPSTREAM = ("ingestion", "curation", "relations", "reze")
DOWNSTREAM = ("training", "evaluation", "reporting")
# What the report is made from; every cell has made them, and MLflow keeps them as artifacts.
RESULTS = ("truncation_scores", "score_replicates", "geometry_scores", "training_report")
# How long a stopped run may take to close its MLflow run.
_GRACE_SECONDS = 60

Runner = Callable[[Mapping[str, Any], Mapping[str, str], Path], None]


def upstream_key(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Select the parameters that have an influence on ingestion to reze.

    Args:
        parameters: All parameters, nested.

    Returns:
        Those that the stages read; equal for runs whose upstream is the same.
    """
    relations = {k: v for k, v in parameters["relations"].items() if k != "launch"}
    evaluation = parameters["evaluation"]
    return {
        "seed": parameters["seed"],
        "curation": parameters["curation"],
        "relations": relations,
        "negatives": parameters["negatives"],
        "reze": parameters["reze"],
        "split": evaluation["split"],
        "samples_per_label": evaluation["classification"]["samples_per_label"],
    }


def shared_entries() -> list[str]:
    """Name the entries that upstream makes and a cell reads."""
    from kedro.framework.project import pipelines

    upstream = sum((pipelines[name] for name in UPSTREAM[1:]), pipelines[UPSTREAM[0]])
    downstream = sum((pipelines[name] for name in DOWNSTREAM[1:]), pipelines[DOWNSTREAM[0]])
    return sorted(downstream.inputs() & upstream.all_outputs())


def find_upstreams(
    project: Project,
    records: Sequence[RunRecord],
    key: Mapping[str, Any],
    names: Sequence[str],
    inputs: str,
) -> list[dict[str, str]]:
    """Find every upstream that one earlier run has made whole, with the same parameters and inputs.

    Args:
        project: The project.
        records: Records of its runs, the newest first.
        key: The `upstream_key` that is wanted.
        names: Entries that are needed.
        inputs: Digest of the raw inputs.

    Returns:
        Versions by entry, the newest first; only where all entries are still there.
    """
    return [
        {name: record.saved[name] for name in names}
        for record in records
        if record.inputs == inputs
        and upstream_key(record.parameters) == key
        and project.has(record.saved, names)
    ]


def find_cell(
    project: Project,
    records: Sequence[RunRecord],
    cell: Cell,
    upstream: Mapping[str, str],
    inputs: str,
) -> RunRecord | None:
    """Find a finished run of a cell: all parameters and all versions that it read are the same."""
    wanted = cell.parameters.model_dump(mode="json")
    for record in records:
        if not record.finished or record.inputs != inputs or record.parameters != wanted:
            continue
        same = all(record.versions.get(name) == version for name, version in upstream.items())
        if same and project.has(record.saved, (*RESULTS, "adaptation_report")):
            return record
    return None


NO_RECORD = "It ended well but left no record: parameters or data changed meanwhile"


class CellError(Exception):
    """A run of a comparison failed; the message says why."""


def run_kedro(options: Mapping[str, Any], environment: Mapping[str, str], stem: Path) -> None:
    """Do one `kedro run` in a process of its own.

    Args:
        options: Options of the command; kept as ``<stem>.yml``, with which it can be repeated
            (``kedro run --config``).
        environment: Environment variables.
        stem: Path of its files without suffix; its output goes to ``<stem>.log``.

    Raises:
        CellError: If it ends with an error; the message is its own.
    """
    config, log = stem.with_suffix(".yml"), stem.with_suffix(".log")
    config.write_text(yaml.safe_dump({"run": dict(options)}, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "kedro", "run", "--config", str(config)]
    with log.open("wb") as file:
        # Its own session: Ctrl-C reaches this process alone, which then ends the run in order.
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            env={**environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except BaseException:
            _stop(process)
            raise
    if code:
        raise CellError(f"{_last_words(log)} (exit code {code}, {log})")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a run as a scheduler would, and for good if that does not help."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _last_words(log: Path) -> str:
    """Return what a run said last: its error message, else its last line."""
    text = log.read_text(encoding="utf-8", errors="replace")
    # A progress bar may still be drawn after the message.
    text = "\n".join(line for line in text.splitlines() if "%|" not in line).strip()
    message = text.rpartition("Error: ")[2] if "Error: " in text else text.rpartition("\n")[2]
    return " ".join(message.split())[:500] or "It said nothing"


@dataclass
class Outcome:
    """What became of the cells.

    Args:
        done: Cells with their records, in order.
        failed: Names and reasons.
    """

    done: list[tuple[Cell, RunRecord]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Execution:
    """Runs what is missing of a comparison.

    Args:
        project: The project.
        folder: Folder of the comparison.
        environment: Environment of the runs.
        tags: Returns the MLflow tags of a cell's run.
        say: Prints a line.
        fresh: Whether nothing that exists is taken.
        runner: Does one `kedro run`.
    """

    project: Project
    folder: Path
    environment: Mapping[str, str]
    tags: Callable[[Cell], Mapping[str, str]]
    say: Callable[[str], None]
    fresh: bool
    runner: Runner

    def run(self, cells: Sequence[Cell]) -> Outcome:
        """Run all cells that are not there yet; a failure does not stop the others.

        Args:
            cells: The cells.

        Returns:
            Finished cells and failures.
        """
        (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        outcome = Outcome()
        upstreams = _Upstreams(self, cells)
        spent: list[float] = []
        for number, cell in enumerate(cells, 1):
            head = f"[{number}/{len(cells)}] {cell.name}"
            try:
                upstream = upstreams.get(cell)
                found = None if self.fresh else upstreams.find(cell, upstream)
                if found is not None:
                    self.say(f"{head}: there already, {found.version}")
                    outcome.done.append((cell, found))
                    continue
                self.say(f"{head}: running{_left(spent, len(cells) - number + 1)}")
                started = time.monotonic()
                self._run_cell(cell, upstream)
                spent.append(time.monotonic() - started)
                found = upstreams.find(cell, upstream)
                if found is None:
                    raise CellError(NO_RECORD)
            except CellError as error:
                self.say(f"{head}: FAILED. {error}")
                outcome.failed.append((cell.name, str(error)))
                continue
            self.say(f"{head}: done in {spent[-1]:.0f} s, {found.version}")
            outcome.done.append((cell, found))
        return outcome

    def _run_cell(self, cell: Cell, upstream: Mapping[str, str]) -> None:
        """Train, evaluate and report from the versions of the upstream."""
        options = self.options(DOWNSTREAM, cell.given)
        options["load_versions"] = ",".join(f"{name}:{v}" for name, v in upstream.items())
        own = {"MLFLOW_RUN_NAME": cell.name, "MLFLOW_RUN_CONTEXT": json.dumps(self.tags(cell))}
        self.runner(options, {**self.environment, **own}, self.folder / "runs" / cell.stem)

    def options(self, stages: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a `kedro run`."""
        env = {} if self.project.env is None else {"env": self.project.env}
        return {**env, "pipelines": ",".join(stages), "params": dict(given)}


class _Upstreams:
    """Ingestion to reze, found or made once for all cells that need the same."""

    def __init__(self, execution: Execution, cells: Sequence[Cell]) -> None:
        """Note what exists, and which cells will ask."""
        self.execution = execution
        self.project = execution.project
        self.cells = cells
        self.inputs = self.project.inputs()
        self.names = shared_entries()
        self.known: list[tuple[dict[str, Any], dict[str, str] | CellError]] = []

    def find(self, cell: Cell, upstream: Mapping[str, str]) -> RunRecord | None:
        """Find a finished run of a cell."""
        return find_cell(self.project, self.project.records(), cell, upstream, self.inputs)

    def get(self, cell: Cell) -> dict[str, str]:
        """Return the versions that a cell starts from.

        Raises:
            CellError: If they could not be made, now or for an earlier cell.
        """
        key = self._key(cell)
        found = next((versions for own, versions in self.known if own == key), None)
        if found is None:
            found = self._make(key, cell)
            self.known.append((key, found))
        if isinstance(found, CellError):
            raise found
        return found

    def _key(self, cell: Cell) -> dict[str, Any]:
        # The upstream is that of the configured seed: what varies is training and evaluation.
        seed = self.project.parameters.seed
        return upstream_key({**cell.parameters.model_dump(mode="json"), "seed": seed})

    def _find(self, key: dict[str, Any]) -> dict[str, str] | None:
        """Find the upstream that most of the cells have been computed from; else the newest."""
        records = self.project.records()
        found = find_upstreams(self.project, records, key, self.names, self.inputs)
        cells = [cell for cell in self.cells if self._key(cell) == key]

        def finished(versions: dict[str, str]) -> int:
            mine = (find_cell(self.project, records, c, versions, self.inputs) for c in cells)
            return sum(record is not None for record in mine)

        return max(found, key=finished, default=None)

    def _make(self, key: dict[str, Any], cell: Cell) -> dict[str, str] | CellError:
        """Find or compute it; a failure is kept, so that it is not tried once per cell."""
        execution = self.execution
        found = None if execution.fresh else self._find(key)
        if found is not None:
            execution.say(f"ingestion to reze: there already, {max(found.values())}")
            return found
        execution.say("ingestion to reze: running, once for all that share its parameters")
        # The method has no say in it, and the seed is the configured one.
        given = {k: value for k, value in cell.given.items() if k not in ("seed", "training")}
        stem = execution.folder / "runs" / f"upstream_{len(self.known)}"
        try:
            execution.runner(execution.options(UPSTREAM, given), execution.environment, stem)
        except CellError as error:
            return CellError(f"ingestion to reze: {error}")
        made = find_upstreams(self.project, self.project.records(), key, self.names, self.inputs)
        return made[0] if made else CellError(f"ingestion to reze: {NO_RECORD}")


def _left(spent: Sequence[float], cells: int) -> str:
    """Say how long it will take, once one cell has told."""
    if not spent:
        return ""
    minutes = sum(spent) / len(spent) * cells / 60
    return f", about {minutes:.0f} min left" if minutes >= 1 else ", about a minute left"


def require_some(outcome: Outcome) -> None:
    """Refuse to write a report about nothing.

    Raises:
        DataError: If every cell failed.
    """
    if not outcome.done:
        lines = [f"  {name}: {reason}" for name, reason in outcome.failed]
        raise DataError("\n".join(["No run of the comparison came to its end:", *lines]))
