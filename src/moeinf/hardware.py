"""What this machine has: memory that this process may still use, and cores that are worth a thread."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    available_bytes: int  # memory that this process may still take without swapping or being killed
    limited_by: str  # "machine" or the control group that binds
    cores: int  # that are worth a thread: see usable_cores
    total_bytes: int = 0  # all memory of the machine; 0: not known
    limit_bytes: int = 0  # of the control group that binds; 0 where none does


@dataclass(frozen=True, slots=True)
class MemoryState:
    available_bytes: int  # as in Machine
    limited_by: str
    stall_s: float = 0.0  # so far, in which something waited for memory; 0 where the kernel does not count that
    limit_bytes: int = 0  # as in Machine


def machine(root: Path = Path("/")) -> Machine:
    """Reads /proc and the control groups (v1 and v2) under `root`."""
    memory = memory_now(root)
    total_bytes = _memory(root, "MemTotal")
    return Machine(memory.available_bytes, memory.limited_by, usable_cores(root), total_bytes, memory.limit_bytes)


def memory_now(root: Path = Path("/")) -> MemoryState:
    """The memory that this process may still take: the least that the machine and its control groups leave."""
    available, limited_by, limit_bytes = _memory(root, "MemAvailable"), "machine", 0
    stall_s = _stall_s(root / "proc/pressure/memory")
    for group, folder, is_v2 in _groups(root, "memory"):
        room = _room(
            folder,
            ("memory.max", "memory.high") if is_v2 else ("memory.limit_in_bytes",),
            "memory.current" if is_v2 else "memory.usage_in_bytes",
        )
        if room is not None and room[0] < available:
            available, limited_by, limit_bytes = room[0], f"control group {group}", room[1]
        stall_s = max(stall_s, _stall_s(folder / "memory.pressure"))
    return MemoryState(max(0, available), limited_by, stall_s, limit_bytes)


def _memory(root: Path, what: str) -> int:
    """Bytes of a line of /proc/meminfo. Without such a line, what macOS says, or all of the machine's memory."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free_percent = macos_fact("kern.memorystatus_level") if what == "MemAvailable" else None
    return total_bytes if free_percent is None else total_bytes * free_percent // 100


def macos_fact(name: str) -> int | None:
    """The number that sysctl of macOS has under this name; None where there is none, and on other systems."""
    if sys.platform != "darwin":
        return None
    value, num_bytes = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    failed = ctypes.CDLL(None).sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(num_bytes), None, ctypes.c_size_t(0)
    )
    return None if failed else value.value


def return_freed_memory() -> None:
    """Gives back to the system what was freed, and lies between memory in use, where glibc keeps it.

    From any thread. Takes some milliseconds, in which other threads may wait for memory. Other libraries of C have
    nothing to call, and nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _groups(root: Path, controller: str) -> Iterator[tuple[str, Path, bool]]:
    """The control groups that limit this process, innermost first: name, folder, whether of version 2."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield f"/{folder}", mount / folder, not controllers


def _room(folder: Path, limits: tuple[str, ...], usage: str) -> tuple[int, int] | None:
    """Bytes that a group may still take, including what the kernel would drop first, and in all; None: no limit."""
    found = [number for limit in limits if (number := _number(folder / limit)) is not None]
    if not found:
        return None
    return min(found) - (_number(folder / usage) or 0) + _page_cache(folder / "memory.stat"), min(found)


def _page_cache(stat: Path) -> int:
    """Bytes of file pages that are charged to a group: the kernel drops them before it kills a process."""
    values = dict(line.split() for line in _lines(stat) if len(line.split()) == 2)
    return sum(int(values.get(f"total_{key}", values.get(key, 0))) for key in ("inactive_file", "active_file"))


def _stall_s(pressure: Path) -> float:
    """The time in which some task waited, as a pressure file tells it; 0 where there is no such file."""
    for line in _lines(pressure):
        if line.startswith("some ") and "total=" in line:
            return int(line.rpartition("total=")[2]) / 1e6
    return 0.0


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None  # "max", and v1's huge number, mean none


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def usable_cores(root: Path = Path("/")) -> int:
    """How many physical cores this process may use, but no more than its control groups give it time for.

    A quota is rounded down: threads wait for each other, so that one thread too many makes all of them stand still
    once the time of a period is used up. For the same reason only the fast cores count where there are slower ones.
    """
    return max(1, min(_physical_cores(root), math.floor(_cpu_quota(root))))


def _physical_cores(root: Path) -> int:
    if (fast := macos_fact("hw.perflevel0.physicalcpu") or macos_fact("hw.physicalcpu")) is not None:
        return fast
    try:
        allowed = os.sched_getaffinity(0)
    except (AttributeError, OSError):  # not every system has it, and a filter of calls may refuse it
        allowed = set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in _fast(root, allowed):
        text = "".join(_lines(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        siblings.add(text or str(cpu))
    return len(siblings)


def _fast(root: Path, allowed: set[int]) -> set[int]:
    """The CPUs among these that are no efficiency cores: as Intel's hybrids list them, or ARM's rate them."""
    performance = _cpu_list("".join(_lines(root / "sys/devices/cpu_core/cpus"))) & allowed
    if performance:
        return performance
    capacity = {cpu: _number(root / f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity") or 0 for cpu in allowed}
    return {cpu for cpu in allowed if 2 * capacity[cpu] >= max(capacity.values())}


def _cpu_list(text: str) -> set[int]:
    """The numbers of a list like 0-3,8."""
    spans = [[int(end) for end in span.split("-")] for span in text.strip().split(",") if span]
    return {cpu for span in spans for cpu in range(span[0], span[-1] + 1)}


def _cpu_quota(root: Path) -> float:
    """How many CPUs the control groups give to this process; a number beyond any machine's where none sets a limit."""
    quota = float(1 << 20)
    for _, folder, is_v2 in _groups(root, "cpu"):
        names = ["cpu.max"] if is_v2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        words = " ".join(line for name in names for line in _lines(folder / name)).split()
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:  # "max", and v1's -1, mean none
            quota = min(quota, int(words[0]) / int(words[1]))
    return quota


def cpu_name(root: Path = Path("/")) -> str:
    """The name of the CPU, or else of its architecture."""
    for key in ("model name", "Model", "Hardware"):  # of x86; of ARM boards
        for line in _lines(root / "proc/cpuinfo"):
            name, _, value = line.partition(":")
            if name.strip() == key and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def peak_rss_bytes() -> int:
    """The most memory that was ever resident in this process; 0 where the system does not tell."""
    try:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    except OSError:
        return 0
    return peak if sys.platform == "darwin" else peak * 1024
