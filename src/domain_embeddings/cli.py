"""The command line: Kedro's own, with errors a user can act on shown without a traceback."""

from __future__ import annotations

from typing import Any

import click
from kedro.framework.cli.project import run as kedro_run
from kedro.framework.cli.utils import CONTEXT_SETTINGS

from domain_embeddings.core.errors import user_error


@click.group(context_settings=CONTEXT_SETTINGS, name="domain_embeddings")
def cli() -> None:
    """Commands of the domain_embeddings project."""


class FriendlyRun(click.Command):
    """`kedro run` whose known errors end in one message and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the pipeline.

        Raises:
            ClickException: For an error the user can correct.
        """
        try:
            return super().invoke(ctx)
        except Exception as error:
            known = user_error(error)
            if known is None:
                raise
            raise click.ClickException(str(known)) from None


cli.add_command(
    FriendlyRun(
        name="run", callback=kedro_run.callback, params=kedro_run.params, help=kedro_run.help
    )
)
