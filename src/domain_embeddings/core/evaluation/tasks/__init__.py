"""Local evaluation tasks on mteb's own task classes, one module per family."""

from domain_embeddings.core.evaluation.tasks.base import (
    LocalTask,
    TaskOptions,
    TaskResult,
    preserved_random_state,
    quiet,
)
from domain_embeddings.core.evaluation.tasks.build import (
    TASK_CLASSES,
    build_tasks,
    task_options,
)

__all__ = [
    "TASK_CLASSES",
    "LocalTask",
    "TaskOptions",
    "TaskResult",
    "build_tasks",
    "preserved_random_state",
    "quiet",
    "task_options",
]
