"""How much memory the process took, and giving freed memory back."""

from __future__ import annotations

import ctypes
import functools
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MEBIBYTE = 1024**2


def peak_memory_mib() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB on Linux.
    return peak / MEBIBYTE if sys.platform == "darwin" else peak * 1024 / MEBIBYTE


def peak_gpu_memory(device: torch.device) -> dict[str, float]:
    """Return the most that tensors took on a GPU so far, in MiB, as an entry of a report.

    Args:
        device: Where the model is; there is no entry unless that is a GPU.
    """
    if device.type != "cuda":
        return {}
    import torch

    return {"peak_gpu_memory_mib": torch.cuda.max_memory_allocated(device) / MEBIBYTE}


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory, of the machine or of a GPU, did not suffice."""
    import torch

    # The allocator of the CPU has no error class of its own.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "DefaultCPUAllocator" in str(error)
    )


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
