"""The command line: Kedro's own, with errors a user can act on shown without a traceback."""

from __future__ import annotations

import difflib
import logging
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.cli.utils import CONTEXT_SETTINGS
from kedro.pipeline import Pipeline

from domain_embeddings.core.errors import user_error

logger = logging.getLogger(__name__)


@click.group(context_settings=CONTEXT_SETTINGS, name="domain_embeddings")
def cli() -> None:
    """Commands of the domain_embeddings project."""


class FriendlyCommand(click.Command):
    """A command whose known errors end in one message and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Do it.

        Raises:
            ClickException: For an error the user can correct.
        """
        try:
            with terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            _mark_as_killed()
            if isinstance(stop, Terminated):
                # The exit code that shells and schedulers know for this signal.
                sys.exit(128 + signal.SIGTERM)
            raise
        except Exception as error:
            message = explain(error)
            if message is None:
                raise
            logger.debug("The run ended with:", exc_info=True)
            raise click.ClickException(message) from None


class FriendlyRun(FriendlyCommand):
    """`kedro run`, which refuses unknown names first."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the pipeline."""
        check_names(ctx.params)
        return super().invoke(ctx)


class Terminated(KeyboardInterrupt):
    """The process was asked to end, by a scheduler for example."""


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does; a second one ends the process on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is stop:
            signal.signal(signal.SIGTERM, before)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse names of pipelines, nodes, tags and data sets that do not exist.

    Kedro finds them later, one at a time, and as a traceback.

    Args:
        options: The options of `kedro run`, as click has parsed them.

    Raises:
        ClickException: Naming the option, the unknown name and the allowed ones.
    """
    from kedro.framework.project import pipelines

    chosen = [*(options.get("pipelines") or []), *filter(None, [options.get("pipeline")])]
    _require_known("--pipelines", chosen, pipelines)
    whole = sum((pipelines[name] for name in chosen or ["__default__"]), Pipeline([]))
    nodes = {node.name for node in whole.nodes}
    for option in ("node_names", "from_nodes", "to_nodes"):
        flag = "--nodes" if option == "node_names" else f"--{option.replace('_', '-')}"
        _require_known(flag, options.get(option) or [], nodes)
    tags = {tag for node in whole.nodes for tag in node.tags}
    _require_known("--tags", options.get("tags") or [], tags)
    data = {name for name in whole.datasets() if not name.startswith("param")}
    for option in ("from_inputs", "to_outputs", "load_versions"):
        flag = f"--{option.replace('_', '-')}"
        _require_known(flag, options.get(option) or [], data)


def _require_known(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones."""
    names = sorted(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else "."
            msg = f"{option}: there is no '{name}'{hint} Allowed: {', '.join(names)}"
            raise click.ClickException(msg)


def explain(error: Exception) -> str | None:
    """Return what to tell the user about an error, or None if it is not theirs to correct.

    Args:
        error: What ended the run.

    Returns:
        The message of a `UserError` anywhere in the chain of causes, or of what Kedro raises about
        configuration and stored data; None for anything else, which deserves its traceback.
    """
    from kedro.config import MissingConfigException
    from kedro.io import DatasetError
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    known = user_error(error)
    if known is not None:
        return str(known)
    if isinstance(error, DatasetError | MissingConfigException | OmegaConfBaseException):
        return str(error)
    if isinstance(error, YAMLError):
        return f"conf: not valid YAML: {error}"
    return None


def _mark_as_killed() -> None:
    """Close an open MLflow run as KILLED; at exit MLflow itself would call it finished."""
    mlflow = sys.modules.get("mlflow")
    if mlflow is None:
        return
    try:
        mlflow.end_run("KILLED")
    except Exception as error:
        logger.warning("MLflow could not close the run: %s", error)


cli.add_command(
    FriendlyRun(
        name="run", callback=kedro_run.callback, params=kedro_run.params, help=kedro_run.help
    )
)


def _compare(env: str | None, params: dict[str, Any], **options: Any) -> None:
    """Compare settings over seeds, or MLflow runs, in one report.

    Ingestion to reze is computed once, every setting and seed is a run of its own. The same command
    again goes on where it was stopped.
    """
    from pathlib import Path

    from kedro.utils import find_kedro_project

    from domain_embeddings.compare.command import Request, compare
    from domain_embeddings.compare.plan import open_project

    root = find_kedro_project(Path.cwd()) or Path.cwd()
    code = compare(open_project(root, env, params), Request(**options), click.echo)
    if code:
        sys.exit(code)


_RUN_OPTIONS = [option for option in kedro_run.params if option.name in ("env", "params")]
cli.add_command(
    FriendlyCommand(
        name="compare",
        callback=_compare,
        help=_compare.__doc__,
        params=[
            click.Option(["--methods"], default="", help="Methods, for example mrl,mic,reze_mic."),
            click.Option(["--seeds"], default="0", help="Seeds, for example 0,1,2."),
            click.Option(
                ["--variant", "variants"],
                multiple=True,
                help="Another setting, as name:key=value;key=value; may be repeated.",
            ),
            *_RUN_OPTIONS,
            click.Option(["--runs"], default="", help="Compare MLflow runs: their ids."),
            click.Option(
                ["--filter", "query"],
                help="Compare MLflow runs, for example \"params.training.method = 'mic'\".",
            ),
            click.Option(["--name"], help="Folder of the report below comparison/."),
            click.Option(
                ["--width"], type=int, help="Width of the pairwise comparison; 64 by default."
            ),
            click.Option(
                ["--fresh"], is_flag=True, help="Compute everything anew, whatever there is."
            ),
        ],
    )
)
