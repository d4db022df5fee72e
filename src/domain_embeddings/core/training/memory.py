"""Give freed memory back to the operating system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`, or None where the C library has no such function."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None


def release_memory() -> None:
    """Return free heap pages to the operating system; does nothing without glibc.

    Batches of ever different shapes leave the heap full of holes that fit no later batch. Without
    this the process grows by tens of MiB a step, although it holds on to nothing.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
