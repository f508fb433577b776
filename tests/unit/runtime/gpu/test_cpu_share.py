"""How the CPU's share of missing experts follows from measured times, on machines that are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from moeinf.runtime.gpu.cpu_share import CpuShare


class MadeUp:
    """A machine of given seconds an expert; `slowed`: by which copying takes longer beside the CPU."""

    def __init__(self, copy_s: float, cpu_s: float, *, slowed: float = 1.0, noise: float = 0.0) -> None:
        self.copy_s, self.cpu_s, self.slowed = copy_s, cpu_s, slowed
        self._noise, self._random = noise, random.Random(1)
        self.notices: list[str] = []
        self.share = CpuShare(self.notices.append)
        self.shares: list[int] = []
        self.took_s = self.alone_s = 0.0
        self._copied, self._busy_s = 0, 0.0

    def visits(self, count: int, missing: Callable[[int], int] = lambda visit: 8) -> None:
        for visit in range(count):
            num = missing(visit)
            self.share.copied(self._copied, self._busy_s)
            taken = self.share.share(num)
            assert 0 <= taken <= num
            cpu = taken * self.cpu_s * self._factor()
            copying = (num - taken) * self.copy_s * (self.slowed if taken else 1.0) * self._factor()
            if taken:
                self.share.computed(taken, cpu)
            self._copied += num - taken
            self._busy_s += copying
            self.shares.append(taken)
            self.took_s += max(cpu, copying)
            self.alone_s += num * self.copy_s

    def _factor(self) -> float:
        return 1 + self._noise * (self._random.random() - 0.5)


@pytest.mark.parametrize(("copy_s", "cpu_s", "best"), [(1.0, 1.0, 4), (3.0, 1.0, 6), (1.0, 3.0, 2), (1.0, 7.0, 1)])
def test_the_slower_of_cpu_and_link_is_done_soonest(copy_s: float, cpu_s: float, best: int) -> None:
    machine = MadeUp(copy_s, cpu_s)
    machine.visits(100)
    assert machine.shares[-1] == best


def test_it_begins_with_copying_only_and_then_tries_one_expert() -> None:
    machine = MadeUp(1.0, 1.0)
    machine.visits(40)
    tried = next(visit for visit, share in enumerate(machine.shares) if share)
    assert tried >= 16 and machine.shares[tried] == 1


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("cpu_s", [0.1, 0.9, 1.1, 4.0, 8.0, 30.0, 400.0])
@pytest.mark.parametrize("slowed", [1.0, 1.5, 3.0])
def test_it_is_hardly_ever_slower_than_copying_alone(cpu_s: float, slowed: float, noise: float) -> None:
    machine = MadeUp(1.0, cpu_s, slowed=slowed, noise=noise)
    machine.visits(20_000)
    assert machine.took_s <= 1.03 * machine.alone_s + 40 * cpu_s


def test_probes_of_a_slow_cpu_become_rare_or_end() -> None:
    machine = MadeUp(1.0, 20.0)
    machine.visits(20_000)
    assert 0 < sum(share > 0 for share in machine.shares) <= 16
    assert not any(machine.shares[-1000:])


def test_help_that_turns_out_slower_ends_for_good_and_is_said_once() -> None:
    machine = MadeUp(1.0, 1.0)
    machine.visits(200)
    assert machine.shares[-1] == 4 and not machine.notices
    machine.cpu_s = 40.0  # another program has come
    machine.visits(20_000)
    assert len(machine.notices) == 1 and "no longer" in machine.notices[0]
    machine.cpu_s = 0.01
    before = len(machine.shares)
    machine.visits(5000)
    assert not any(machine.shares[before:]) and len(machine.notices) == 1


def test_one_visit_that_is_held_up_does_not_end_help() -> None:
    machine = MadeUp(1.0, 1.0)
    machine.visits(200)
    machine.cpu_s = 1000.0
    machine.visits(1)
    machine.cpu_s = 1.0
    machine.visits(300)
    assert machine.share.enabled and machine.shares[-1] == 4


def test_the_rate_of_copying_alone_is_measured_again() -> None:
    machine = MadeUp(4.0, 1.0)
    machine.visits(200)
    machine.copy_s = 0.2
    machine.visits(2000)
    assert machine.shares[-1] <= 2, "the link has become faster"


def test_a_link_that_copying_beside_the_cpu_slows_down_gets_no_help() -> None:
    machine = MadeUp(1.0, 4.0, slowed=3.0)
    machine.visits(5000)
    assert not any(machine.shares[-100:])


def test_told_not_to_help_it_never_takes_a_share() -> None:
    machine = MadeUp(100.0, 0.1)
    machine.share = CpuShare(enabled=False)
    machine.visits(1000)
    assert not any(machine.shares)


def test_nothing_missing_is_nothing_to_share() -> None:
    machine = MadeUp(1.0, 1.0)
    machine.visits(500, lambda visit: visit % 3)
    assert all(share <= visit % 3 for visit, share in enumerate(machine.shares))
    assert any(machine.shares)
