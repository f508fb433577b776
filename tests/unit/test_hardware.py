"""Memory that a process may use, read from made-up /proc and /sys trees."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from moeinf.hardware import cpu_name, machine

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in ({"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 * GIB // 1024} kB\n"} | files).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_the_machine_binds(tmp_path: Path) -> None:
    here = machine(write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}))
    assert (here.available_bytes, here.limited_by) == (8 * GIB, "machine")
    assert here.total_bytes == 99 * 1024


def test_a_v2_limit_counts_less_what_is_used_but_page_cache(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user/app"
    here = machine(write(tmp_path, {
        "proc/self/cgroup": "0::/user/app\n", f"{group}/memory.max": f"{4 * GIB}\n",
        f"{group}/memory.current": f"{2 * GIB}\n",
        f"{group}/memory.stat": f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\n",
    }))
    assert here.available_bytes == 4 * GIB - (2 * GIB - 3 * GIB // 4)
    assert here.limited_by == "control group /user/app"


def test_the_tightest_of_nested_v1_limits_binds(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    here = machine(write(tmp_path, {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/a/b\n", f"{top}/a/b/memory.limit_in_bytes": "9223372036854771712\n",
        f"{top}/a/b/memory.usage_in_bytes": f"{GIB}\n", f"{top}/a/memory.limit_in_bytes": f"{3 * GIB}\n",
        f"{top}/a/memory.usage_in_bytes": f"{GIB}\n", f"{top}/a/memory.stat": "total_inactive_file 4096\n",
    }))
    assert here.available_bytes == 2 * GIB + 4096
    assert here.limited_by == "control group /a"


def test_a_group_over_its_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    here = machine(write(tmp_path, {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "4096\n",
                                    "sys/fs/cgroup/a/memory.current": "8192\n"}))
    assert here.available_bytes == 0


def test_this_machine_has_memory_and_a_core() -> None:
    here = machine()
    assert here.available_bytes > 1 << 20 and here.cores >= 1


@pytest.mark.parametrize(("text", "name"), [
    ("processor\t: 0\nmodel\t\t: 68\nmodel name\t: AMD EPYC 9B45\n", "AMD EPYC 9B45"),
    ("processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
    ("processor\t: 0\n", platform.processor() or platform.machine()),
])
def test_the_cpu_is_called_as_it_calls_itself(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert cpu_name(tmp_path) == name
