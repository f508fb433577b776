"""What this machine has: memory that this process may still use, and cores worth a thread."""

from __future__ import annotations

import os
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    available_bytes: int  # memory that this process may still take without swapping or being killed
    limited_by: str  # "machine" or the control group that binds
    cores: int  # physical cores in this process's affinity mask
    total_bytes: int = 0  # memory of the machine, whoever uses it; 0: not known


def machine(root: Path = Path("/")) -> Machine:
    """Reads /proc and the control groups (v1 and v2) under `root`."""
    available, limited_by = _memory(root, "MemAvailable"), "machine"
    for group, room in _cgroup_rooms(root):
        if room < available:
            available, limited_by = room, f"control group {group}"
    return Machine(max(0, available), limited_by, physical_cores(root), _memory(root, "MemTotal"))


def _memory(root: Path, what: str) -> int:
    """Bytes of a line of /proc/meminfo; all of the machine's memory where there is no such line."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_rooms(root: Path) -> list[tuple[str, int]]:
    """(group, bytes left) for each memory limit on the way from this process's groups to the root."""
    rooms = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            limit_bytes = _number(mount / folder / limit)
            if limit_bytes is not None:
                used = (_number(mount / folder / usage) or 0) - _page_cache(mount / folder / "memory.stat")
                rooms.append((f"/{folder}", limit_bytes - used))
    return rooms


def _page_cache(stat: Path) -> int:
    """File pages charged to a group: the kernel drops them before it kills."""
    values = dict(line.split() for line in _lines(stat) if len(line.split()) == 2)
    return sum(int(values.get(f"total_{key}", values.get(key, 0))) for key in ("inactive_file", "active_file"))


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None  # "max", and v1's huge number, mean none


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def physical_cores(root: Path = Path("/")) -> int:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in allowed:
        text = "".join(_lines(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        siblings.add(text or str(cpu))
    return len(siblings)


def cpu_name(root: Path = Path("/")) -> str:
    """What the CPU calls itself, else what the system calls its kind."""
    for key in ("model name", "Model", "Hardware"):  # of x86; of ARM boards
        for line in _lines(root / "proc/cpuinfo"):
            name, _, value = line.partition(":")
            if name.strip() == key and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def peak_rss_bytes() -> int:
    """Most memory that was ever resident in this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
