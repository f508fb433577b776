"""Memory taken ahead of the reads into it."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest

from moeinf._native import Arena, populate
from moeinf.runtime.io.pages import HUGE_PAGE_BYTES, PagesAhead, take
from moeinf.types import ByteArray

STEP = 4096


def noted(ranges: list[tuple[int, int]], num_pages: int) -> PagesAhead:
    """With pieces of one page, two ahead; notes the ranges of the memory that it populates, without threads."""

    def note(pieces: deque[ByteArray]) -> list[threading.Thread]:
        ranges.extend((int(piece[0]) * STEP, len(piece)) for piece in pieces)
        return []

    return PagesAhead(numbered_pages(num_pages), piece_bytes=STEP, ahead_bytes=2 * STEP, take=note)


def numbered_pages(count: int) -> ByteArray:
    return np.repeat(np.arange(count, dtype=np.uint8), STEP)


def test_pages_are_taken_once_in_order_and_a_little_ahead() -> None:
    taken: list[tuple[int, int]] = []
    ahead = noted(taken, 6)
    ahead.reach(STEP)
    assert taken == [(0, STEP), (STEP, STEP), (2 * STEP, STEP)] and not ahead.all_taken
    ahead.reach(2 * STEP)
    assert len(taken) == 3, "enough is left of the window"
    for end in (3, 4, 6):
        ahead.reach(end * STEP)
    assert taken == [(page * STEP, STEP) for page in range(6)] and ahead.all_taken


def test_a_little_memory_is_left_to_come_with_the_reads() -> None:
    assert noted([], 1).all_taken


def test_where_no_thread_can_be_started_pages_come_with_the_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ahead = PagesAhead(numbered_pages(6), piece_bytes=STEP)
    ahead.reach(STEP)
    ahead.resize(STEP)
    assert ahead.all_taken


def test_threads_populate_every_piece_and_end() -> None:
    seen: list[int] = []

    def note(piece: ByteArray) -> bool:
        seen.append(int(piece[0]))
        return True

    before = threading.active_count()
    take(deque(np.full(1, number, np.uint8) for number in range(50)), note)
    for thread in threading.enumerate():
        if thread.name == "moeinf-pages":
            thread.join(10)
    assert sorted(seen) == list(range(50)) and threading.active_count() == before


def test_all_that_is_being_taken_has_ended_when_memory_is_given_back() -> None:
    queues: list[deque[ByteArray]] = []
    ended: list[int] = []

    class Taking(threading.Thread):
        """Would go on with its queue for as long as nobody clears that."""

        def __init__(self, pieces: deque[ByteArray]) -> None:
            super().__init__()
            queues.append(pieces)
            self._pieces = pieces

        def is_alive(self) -> bool:
            return True

        def join(self, timeout: float | None = None) -> None:
            ended.append(len(self._pieces))

    ahead = PagesAhead(numbered_pages(9), piece_bytes=STEP, ahead_bytes=2 * STEP, take=lambda pieces: [Taking(pieces)])
    for end in (1, 3, 6):
        ahead.reach(end * STEP)
    assert len(queues) == 3 and all(queues)
    ahead.resize(STEP)
    assert ended == [0, 0, 0]


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


def test_populated_memory_keeps_its_contents() -> None:
    memory = Arena(8 * STEP).array()
    memory[5 * STEP] = 9
    populate(memory[1 : 7 * STEP])
    assert memory[5 * STEP] == 9 and int(memory.sum()) == 9
