"""The collections of tasks that come with the project, made of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from domain_embeddings.core.tasks import data_set_prose, python_code

BuiltinTask = python_code.CodeTask | data_set_prose.ProseTask


class Collection(Protocol):
    """Rows by task and split."""

    def rows(self, task: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield origin and values of the rows of one task and split."""
        ...

    def distractors(self, task: str, split: str) -> Iterator[tuple[str, str]]:
        """Yield origin and text of documents that make a retrieval corpus larger."""
        ...

    def report(self) -> dict[str, Any]:
        """Return versions and counts in JSON form."""
        ...


_TASKS = {"python_code": python_code.CODE_TASKS, "data_set_prose": data_set_prose.PROSE_TASKS}
_COLLECT: dict[str, Callable[[], Collection]] = {
    "python_code": python_code.collect,
    "data_set_prose": data_set_prose.collect,
}


def collection_of(task: Any) -> str:
    """Name the collection that a task is in; an unknown task is reported by its spec."""
    return next((name for name, tasks in _TASKS.items() if task in tasks), "python_code")


def spec_defaults(task: Any) -> dict[str, Any]:
    """Return the spec fields that a builtin task brings with it."""
    prose = collection_of(task) == "data_set_prose"
    return (data_set_prose if prose else python_code).spec_defaults(task)


def collect(name: str) -> Collection:
    """Read a collection from the installed packages."""
    return _COLLECT[name]()
