"""Entry point of `python -m domain_embeddings` and of the packaged project."""

from __future__ import annotations

import sys
from pathlib import Path

from kedro.framework.project import configure_project

PACKAGE = Path(__file__).parent.name


def main(*arguments: str) -> None:
    """Run the pipeline with the arguments of `kedro run`."""
    configure_project(PACKAGE)
    from domain_embeddings.cli import cli

    cli(["run", *(arguments or sys.argv[1:])])


if __name__ == "__main__":
    main()
