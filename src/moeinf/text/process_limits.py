"""Limits what a process for untrusted content may take: its memory, and its time.

The time is that of the processor, which a busy machine makes no longer.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

LOAD_MEMORY_BYTES = 4 << 30  # with the tokenizer loaded
STARVED_S = 60.0  # that a process may take beyond its limit, as long as it gets no processor time for it


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


class TimeLimit:
    """limit_s: seconds of processor time of a process from now on; where the system does not tell them, of any time."""

    def __init__(self, pid: int, limit_s: float) -> None:
        self.limit_s, self._pid = limit_s, pid
        self._began_s, self._had_s = time.monotonic(), processor_seconds(pid)

    def left_s(self) -> float:
        """How long to wait at least before it is worth while to look again."""
        return max(0.0, self._began_s + self.limit_s - time.monotonic())

    def exceeded(self) -> bool:
        """Whether the process has used up what it may."""
        if self.left_s() > 0:
            return False
        has_s = processor_seconds(self._pid)
        return self._had_s is None or has_s is None or has_s - self._had_s >= self.limit_s

    def starved(self) -> bool:
        """Whether it has not, and yet took so long that it is no use to wait on."""
        return time.monotonic() - self._began_s > self.limit_s + STARVED_S


def processor_seconds(pid: int) -> float | None:
    """What a process has used of all processors, by all its threads; None where the system does not tell."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")  # utime and stime
    except (OSError, ValueError):
        return None
