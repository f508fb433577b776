"""Memory taken ahead of the reads into it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from moeinf._native import Arena, PageTaker
from moeinf.runtime.io.pages import HUGE_PAGE_BYTES, LEAST_BYTES, PagesAhead
from moeinf.types import ByteArray
from tests.support.resident import NotedTaker, resident_bytes

MIB = 1 << 20


def noted(num_mib: int) -> tuple[PagesAhead, NotedTaker]:
    """Two MiB ahead."""
    memory = Arena(num_mib * MIB).array()
    taker = NotedTaker()
    return PagesAhead(memory, ahead_bytes=2 * MIB, taker=lambda memory: taker), taker


def test_pages_are_taken_once_in_order_and_a_little_ahead() -> None:
    ahead, taker = noted(20)
    ahead.reach(MIB)
    assert taker.taken == [(0, 3 * MIB)] and not ahead.all_taken
    ahead.reach(2 * MIB)
    assert len(taker.taken) == 1, "enough is left of the window"
    for end in (3, 4, 17, 20):
        ahead.reach(end * MIB)
    assert taker.taken[1:] == [(3 * MIB, 5 * MIB), (5 * MIB, 19 * MIB), (19 * MIB, 20 * MIB)] and ahead.all_taken


def test_a_little_memory_is_left_to_come_with_the_reads() -> None:
    assert noted(LEAST_BYTES // MIB)[0].all_taken and not noted(LEAST_BYTES // MIB + 1)[0].all_taken


def test_nothing_is_being_taken_where_memory_is_given_back() -> None:
    ahead, taker = noted(20)
    ahead.reach(6 * MIB)
    ahead.resize(3 * MIB)
    assert taker.dropped == [3 * MIB] and ahead.all_taken
    ahead.resize(20 * MIB)
    ahead.reach(4 * MIB)
    assert taker.taken == [(0, 8 * MIB), (3 * MIB, 6 * MIB)]


def test_pages_come_in_the_background_and_keep_their_contents() -> None:
    memory = Arena(64 * MIB).array()
    memory[5 * MIB] = 9
    taker, before = PageTaker(memory), resident_bytes()
    taker.take(0, 32 * MIB)
    for _ in range(1000):
        if resident_bytes() - before >= 24 * MIB:
            break
        time.sleep(0.01)
    else:
        pytest.fail("no pages came")
    taker.drop(0)
    assert memory[5 * MIB] == 9 and int(memory[: 32 * MIB].sum()) == 9


def test_a_range_outside_the_memory_is_refused() -> None:
    taker = PageTaker(np.zeros(10, np.uint8))
    with pytest.raises(ValueError, match="not inside"):
        taker.take(0, 11)


def test_small_steps_down_leave_no_memory_between_them() -> None:
    given: list[tuple[int, int]] = []
    memory = Arena(64 << 20).array()
    start = memory.ctypes.data

    def give_back(part: ByteArray) -> bool:
        if len(part):
            given.append((part.ctypes.data - start, len(part)))
        return True

    ahead = PagesAhead(memory, give_back=give_back)
    for end in range(64 << 20, 0, -(700 << 10)):
        ahead.resize(end)
    assert sum(length for _, length in given) == (64 << 20) - HUGE_PAGE_BYTES
