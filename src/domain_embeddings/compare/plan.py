"""What is to be compared: settings and seeds, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from domain_embeddings.core.errors import ParameterError
from domain_embeddings.parameters import METHODS, Parameters, check_parameters
from domain_embeddings.records import FOLDER, RunRecord, inputs_digest, read_records

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,59}")
_RESERVED = ("untouched", "reference")


@dataclass(frozen=True)
class Setting:
    """A named choice of parameters.

    Args:
        name: What it is called in the report.
        changes: Nested parameters that differ from the common ones.
    """

    name: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run that is wanted.

    Args:
        setting: Its setting.
        seed: Its seed.
        given: Nested parameters of its command.
        parameters: All parameters, defaults included.
    """

    setting: Setting
    seed: int
    given: Mapping[str, Any]
    parameters: Parameters

    @property
    def name(self) -> str:
        """How it is called in messages and in the MLflow UI."""
        return f"{self.setting.name}, seed {self.seed}"

    @property
    def stem(self) -> str:
        """How its files are called."""
        return f"{self.setting.name}_{self.seed}"


@dataclass(frozen=True)
class Project:
    """The project as a command sees it: resolved configuration and places.

    Args:
        root: Its folder.
        env: Configuration environment.
        raw: Nested base parameters, with those of the command.
        given: Nested parameters of the command alone.
        catalog: Resolved catalog configuration.
        data: Folder of the data layers.
        mlflow: kedro-mlflow's configuration; None if MLflow could not be set up.
    """

    root: Path
    env: str | None
    raw: Mapping[str, Any]
    given: Mapping[str, Any]
    catalog: Mapping[str, Any]
    data: Path
    mlflow: Any = None

    @property
    def parameters(self) -> Parameters:
        """The typed base parameters."""
        return check_parameters(dict(self.raw))

    def records(self) -> list[RunRecord]:
        """Return the records of all runs, the newest first."""
        return read_records(self.data / FOLDER)

    def inputs(self) -> str:
        """Identify the raw inputs."""
        return inputs_digest(self.catalog, self.root)

    def path(self, entry: str, version: str) -> Path:
        """Return where a version of an entry lies."""
        place = self.root / str(self.catalog[entry]["filepath"])
        return place / version / place.name

    def has(self, versions: Mapping[str, str], names: Iterable[str]) -> bool:
        """Say whether all of these entries are known and still there."""
        return all(name in versions and self.path(name, versions[name]).exists() for name in names)


def open_project(root: Path, env: str | None, given: Mapping[str, Any]) -> Project:
    """Read the configuration of the project.

    Args:
        root: Its folder.
        env: Configuration environment; None for the default one.
        given: Nested parameters of the command.

    Returns:
        The project.

    Raises:
        ParameterError: If a parameter is unknown or out of range.
    """
    from kedro.framework.session import KedroSession

    with KedroSession.create(root, env=env, runtime_params=dict(given)) as session:
        context = session.load_context()
        loader = context.config_loader
        return Project(
            root=root,
            env=env,
            raw=dict(loader["parameters"]),
            given=given,
            catalog=loader["catalog"],
            data=root / loader["globals"]["data"],
            mlflow=getattr(context, "mlflow", None),
        )


def parse_seeds(text: str) -> list[int]:
    """Read a list of seeds such as ``0,1,2``.

    Raises:
        ParameterError: Naming the option and what is allowed.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    seeds = [int(part) for part in parts if part.isdecimal()]
    if not parts or len({*seeds}) < len(parts):
        msg = f"--seeds: '{text}'; allowed: different whole numbers from 0, for example 0,1,2"
        raise ParameterError(msg)
    return seeds


def parse_settings(methods: str, variants: Sequence[str]) -> list[Setting]:
    """Read the settings that are wanted.

    Args:
        methods: Methods, separated by commas; may be empty.
        variants: ``name:key=value;key=value``; a variant without changes is the default.

    Returns:
        The methods and then the variants.

    Raises:
        ParameterError: For an unknown method, or a name that is malformed or taken.
    """
    names = [name.strip() for name in methods.split(",") if name.strip()]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        msg = f"--methods: there is no '{unknown[0]}'; allowed: {', '.join(METHODS)}"
        raise ParameterError(msg)
    found = [Setting(name, {"training": {"method": name}}) for name in names]
    for variant in variants:
        name, _, changes = variant.partition(":")
        if not _NAME.fullmatch(name) or name in _RESERVED:
            msg = (
                f"--variant: '{name}' cannot be a name; allowed: up to 60 letters, digits and "
                f"_ . + -, except {', '.join(_RESERVED)}"
            )
            raise ParameterError(msg)
        found.append(Setting(name, _parse_changes(name, changes)))
    taken = [setting.name for setting in found]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        msg = f"--methods, --variant: '{twice[0]}' is there twice"
        raise ParameterError(msg)
    if not found:
        msg = "Nothing to compare: give --methods or --variant, or --runs or --filter"
        raise ParameterError(msg)
    return found


def _parse_changes(name: str, changes: str) -> dict[str, Any]:
    """Read ``key=value;key=value`` as `--params` would."""
    items = [item.strip() for item in changes.split(";") if item.strip()]
    bad = [item for item in items if not re.fullmatch(r"[\w.]+=.*", item)]
    if bad:
        msg = f"--variant {name}: '{bad[0]}'; allowed: key=value;key=value"
        raise ParameterError(msg)
    return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.from_dotlist(items)))


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested parameters; later ones win, siblings stay."""
    merged = OmegaConf.merge(*[OmegaConf.create(dict(part)) for part in parts])
    return cast("dict[str, Any]", OmegaConf.to_container(merged))


def plan_cells(project: Project, settings: Sequence[Setting], seeds: Sequence[int]) -> list[Cell]:
    """Lay out all cells, one seed after the other, and check the parameters of every one.

    Args:
        project: The project.
        settings: Settings.
        seeds: Seeds.

    Returns:
        The cells.

    Raises:
        ParameterError: Naming the setting and every offending key.
    """
    if "seed" in project.given or any("seed" in setting.changes for setting in settings):
        msg = "seed: is what --seeds gives; allowed: --seeds 0,1,2"
        raise ParameterError(msg)
    cells = []
    for seed in seeds:
        for setting in settings:
            own = merge(setting.changes, {"seed": seed})
            try:
                parameters = check_parameters(merge(project.raw, own))
            except ParameterError as error:
                msg = f"{setting.name}: {error}"
                raise ParameterError(msg) from None
            cells.append(Cell(setting, seed, merge(project.given, own), parameters))
    return cells
