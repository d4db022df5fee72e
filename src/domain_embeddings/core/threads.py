"""How many threads compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, in NumPy, SciPy and torch.

    For small problems: more threads would spend their time waiting for each other, which on a busy
    machine takes tens of times longer. And for results that must not depend on the number of
    threads, as sums over several do in their last digits.
    """
    before = torch.get_num_threads()
    with _pools().limit(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@cache
def _pools() -> ThreadpoolController:
    """Find the thread pools of the process once; that takes longer than some evaluations."""
    return ThreadpoolController()
