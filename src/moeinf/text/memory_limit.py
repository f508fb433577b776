"""Limits the memory that the text worker may take."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

LOAD_MEMORY_BYTES = 4 << 30  # with the tokenizer loaded


class MemoryLimit:
    """Lets the address space grow by at most `num_bytes` inside the block; beyond it Python raises MemoryError."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes

    def __enter__(self) -> None:
        try:
            used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        except OSError:  # no procfs: the limit of the process has to do
            used_bytes = LOAD_MEMORY_BYTES - self._num_bytes
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        limit_bytes = min(used_bytes + self._num_bytes, self._before[1]) if self._before[1] >= 0 else -1
        limit_memory(limit_bytes, self._before[1])

    def __exit__(self, *_: object) -> None:
        limit_memory(*self._before)


def limit_memory(soft_bytes: int, hard_bytes: int) -> None:
    """Limits the address space. macOS refuses that: there, only the parent's deadline ends what takes too much."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (soft_bytes, hard_bytes))
    except (ValueError, OSError) as error:
        if sys.platform != "darwin":
            raise ValueError(f"its memory cannot be limited ({error})") from error
