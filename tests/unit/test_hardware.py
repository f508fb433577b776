"""Memory that a process may use, read from made-up /proc and /sys trees."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

from moeinf.hardware import cpu_name, machine, macos_fact, memory_now, usable_cores

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
    here = machine(
        write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/user/app\n",
                f"{group}/memory.max": f"{4 * GIB}\n",
                f"{group}/memory.current": f"{2 * GIB}\n",
                f"{group}/memory.stat": f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\n",
            },
        )
    )
    assert (here.available_bytes, here.limit_bytes) == (4 * GIB - (2 * GIB - 3 * GIB // 4), 4 * GIB)
    assert here.limited_by == "control group /user/app"


def test_the_tightest_of_nested_v1_limits_binds(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory"
    here = machine(
        write(
            tmp_path,
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/a/b\n",
                f"{top}/a/b/memory.limit_in_bytes": "9223372036854771712\n",
                f"{top}/a/b/memory.usage_in_bytes": f"{GIB}\n",
                f"{top}/a/memory.limit_in_bytes": f"{3 * GIB}\n",
                f"{top}/a/memory.usage_in_bytes": f"{GIB}\n",
                f"{top}/a/memory.stat": "total_inactive_file 4096\n",
            },
        )
    )
    assert here.available_bytes == 2 * GIB + 4096
    assert here.limited_by == "control group /a"


def test_a_group_over_its_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    here = machine(
        write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "4096\n",
                "sys/fs/cgroup/a/memory.current": "8192\n",
            },
        )
    )
    assert here.available_bytes == 0


def test_a_v2_group_that_is_throttled_before_its_limit_has_no_more_than_that(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/app"
    state = memory_now(
        write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/app\n",
                f"{group}/memory.max": f"{4 * GIB}\n",
                f"{group}/memory.high": f"{3 * GIB}\n",
                f"{group}/memory.current": f"{GIB}\n",
            },
        )
    )
    assert (state.available_bytes, state.limited_by) == (2 * GIB, "control group /app")


def test_time_waited_for_memory_is_that_of_the_group_or_machine_that_waits_most(tmp_path: Path) -> None:
    pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
    state = memory_now(
        write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/a/b\n",
                "proc/pressure/memory": pressure.format(1_500_000),
                "sys/fs/cgroup/a/memory.pressure": pressure.format(2_250_000),
                "sys/fs/cgroup/a/b/memory.pressure": pressure.format(250_000),
            },
        )
    )
    assert state.stall_s == 2.25
    assert memory_now(write(tmp_path / "old", {"proc/self/cgroup": "0::/\n"})).stall_s == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "250000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/b\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "0::/a\n"}, 4),
    ],
)
def test_threads_are_no_more_than_a_groups_quota_of_time_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3, 4}, raising=False)
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    pair = {siblings.format(0): "0,4\n", siblings.format(4): "0,4\n"}
    assert usable_cores(write(tmp_path, files | pair)) == cores
    assert machine(tmp_path).cores == cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/devices/cpu_core/cpus": "0-3\n", "sys/devices/cpu_atom/cpus": "4-7\n"}, 2),
        ({"sys/devices/cpu_core/cpus": "8-11,13\n"}, 6),  # none of those that this process may use
        (
            {
                f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": f"{capacity}\n"
                for cpu, capacity in enumerate((1024, 1024, 1024, 1024, 870, 870, 260, 260))
            },
            4,
        ),
        ({}, 6),
    ],
)
def test_neither_efficiency_cores_nor_hyper_threads_are_worth_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    siblings = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    pairs = {siblings.format(cpu): f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n" for cpu in range(4)}
    assert usable_cores(write(tmp_path, files | pairs)) == cores


def test_macos_is_asked_what_proc_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"kern.memorystatus_level": 25, "hw.perflevel0.physicalcpu": 6, "hw.physicalcpu": 10}
    monkeypatch.setattr("moeinf.hardware.macos_fact", facts.get)
    here = machine(tmp_path)
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (here.available_bytes, here.total_bytes, here.cores) == (total_bytes * 25 // 100, total_bytes, 6)
    assert (macos_fact("kern.memorystatus_level") is None) == (sys.platform != "darwin")


def test_this_machine_has_memory_and_a_core() -> None:
    here = machine()
    assert here.available_bytes > 1 << 20 and here.cores >= 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 68\nmodel name\t: AMD EPYC 9B45\n", "AMD EPYC 9B45"),
        ("processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("processor\t: 0\n", platform.processor() or platform.machine()),
    ],
)
def test_the_cpu_is_called_as_it_calls_itself(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert cpu_name(tmp_path) == name
