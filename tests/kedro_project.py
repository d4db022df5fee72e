"""A copy of the project in a folder of its own, to run Kedro in."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from click.testing import CliRunner, Result
from kedro.framework.startup import bootstrap_project
from omegaconf import OmegaConf

from domain_embeddings.pipeline_registry import register_pipelines

ROOT = Path(__file__).parents[1]
DATA = Path("data/test")
KEDRO = str(Path(sys.executable).with_name("kedro"))
# Log lines as they are, not folded to the width of a terminal.
ENVIRONMENT = {"COLUMNS": "400", "KEDRO_LOGGING_CONFIG": str(ROOT / "conf/logging.yml")}


def places(pipeline: str) -> dict[str, str]:
    """Return layer folder and file name of every entry that a pipeline writes."""
    written = register_pipelines()[pipeline].all_outputs()
    found = {}
    for path in sorted((ROOT / "conf/base/catalog").glob("*.yml")):
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if name in written:
                found[name] = entry["filepath"].removeprefix("${globals:data}/")
    return found


PLACES = places("__default__")


@dataclass(frozen=True)
class Project:
    """A project folder; everything a run writes stays below it."""

    folder: Path

    def run(self, *arguments: str) -> Result:
        """Do what `kedro run --env=test` does, in this process."""
        return self.command("run", "--env=test", *arguments)

    def command(self, *arguments: str, **environment: str) -> Result:
        """Do what `kedro` does with these arguments, in this process."""
        from domain_embeddings.cli import cli

        # OmegaConf keeps the first resolver of a name; one of another test could point elsewhere.
        OmegaConf.clear_resolver("project_path")
        with contextlib.chdir(self.folder):
            metadata = bootstrap_project(self.folder)
            runner = CliRunner(env={**ENVIRONMENT, **environment})
            return runner.invoke(cli, arguments, obj=metadata)

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a process in the folder; its output and errors come together."""
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def versions(self, name: str) -> list[str]:
        """Return the versions of an entry, oldest first; `name` includes layer and suffix."""
        folder = self.folder / DATA / name
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def path(self, name: str, version: str) -> Path:
        """Return the file or folder of an entry."""
        return self.folder / DATA / name / version / Path(name).name

    def frame(self, name: str, version: str) -> pd.DataFrame:
        """Read a parquet entry."""
        return pd.read_parquet(self.path(name, version))

    def edit_yaml(self, name: str, change: Any) -> None:
        """Rewrite a file below conf/test with `change` applied to its content."""
        path = self.folder / "conf/test" / name
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def edit_task(self, name: str, **change: Any) -> None:
        """Change keys of one task."""

        def apply(content: dict[str, Any]) -> None:
            [task] = [t for t in content["raw_tasks"]["tasks"] if t["name"] == name]
            task.update(change)

        self.edit_yaml("catalog/raw.yml", apply)

    def keep_tasks(self, *names: str) -> None:
        """Drop all tasks but the named ones."""

        def apply(content: dict[str, Any]) -> None:
            tasks = content["raw_tasks"]["tasks"]
            content["raw_tasks"]["tasks"] = [t for t in tasks if t["name"] in names]

        self.edit_yaml("catalog/raw.yml", apply)

    def task_file(self, name: str) -> Path:
        """Return a file of the tasks."""
        return self.folder / "tests/fixtures/tasks" / name

    def mlflow_runs(self) -> list[Any]:
        """Return all MLflow runs, oldest first."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.folder / DATA / 'mlflow.db'}")
        ids = [e.experiment_id for e in client.search_experiments()]
        return sorted(client.search_runs(ids), key=lambda run: run.info.start_time)

    def copy(self, folder: Path) -> Project:
        """Copy the project with all its data."""
        shutil.copytree(self.folder, folder)
        return Project(folder)


@dataclass(frozen=True)
class FinishedRun:
    """A run that ended well.

    Args:
        project: The folder it ran in, which nobody writes to any more.
        result: Exit code and console output.
        version: Under which everything was saved.
    """

    project: Project
    result: Result
    version: str


def make_project(folder: Path) -> Project:
    """Copy configuration and fixtures; the package is the installed one."""
    folder.mkdir(parents=True, exist_ok=True)
    # Kedro wants the folder; Python finds the package in the environment.
    (folder / "src").mkdir()
    for name in ("pyproject.toml", ".telemetry"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("base", "test"):
        shutil.copytree(ROOT / "conf" / name, folder / "conf" / name)
    shutil.copy(ROOT / "conf/logging.yml", folder / "conf/logging.yml")
    for name in ("model", "tasks"):
        place = Path("tests/fixtures") / name
        shutil.copytree(ROOT / place, folder / place)
    return Project(folder)
