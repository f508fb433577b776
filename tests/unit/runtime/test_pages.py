"""Memory taken ahead of the reads into it."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import pytest

from moeinf._native import Arena, populate
from moeinf.runtime import pages
from moeinf.runtime.pages import PagesAhead, take
from moeinf.types import ByteArray

STEP = 4096


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Ranges of the arena that were populated, with pieces of one page, two ahead; no threads."""
    ranges: list[tuple[int, int]] = []

    def note(pieces: deque[ByteArray]) -> None:
        ranges.extend((int(piece[0]) * STEP, len(piece)) for piece in pieces)

    monkeypatch.setattr(pages, "PIECE_BYTES", STEP)
    monkeypatch.setattr(pages, "AHEAD_BYTES", 2 * STEP)
    monkeypatch.setattr(pages, "take", note)
    return ranges


def numbered_pages(count: int) -> ByteArray:
    return np.repeat(np.arange(count, dtype=np.uint8), STEP)


def test_pages_are_taken_once_in_order_and_a_little_ahead(taken: list[tuple[int, int]]) -> None:
    ahead = PagesAhead(numbered_pages(6))
    ahead.reach(STEP)
    assert taken == [(0, STEP), (STEP, STEP), (2 * STEP, STEP)] and not ahead.all_taken
    ahead.reach(2 * STEP)
    assert len(taken) == 3, "enough is left of the window"
    for end in (3, 4, 6):
        ahead.reach(end * STEP)
    assert taken == [(page * STEP, STEP) for page in range(6)] and ahead.all_taken


def test_a_little_memory_is_left_to_come_with_the_reads(taken: list[tuple[int, int]]) -> None:
    assert PagesAhead(numbered_pages(1)).all_taken


def test_where_no_thread_can_be_started_pages_come_with_the_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(pages, "PIECE_BYTES", STEP)
    ahead = PagesAhead(numbered_pages(6))
    ahead.reach(STEP)
    ahead.resize(STEP)
    assert ahead.all_taken


def test_threads_populate_every_piece_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def note(piece: ByteArray) -> bool:
        seen.append(int(piece[0]))
        return True

    monkeypatch.setattr(pages, "populate", note)
    before = threading.active_count()
    take(deque(np.full(1, number, np.uint8) for number in range(50)))
    for thread in threading.enumerate():
        if thread.name == "moeinf-pages":
            thread.join(10)
    assert sorted(seen) == list(range(50)) and threading.active_count() == before


def test_populated_memory_keeps_its_contents() -> None:
    memory = Arena(8 * STEP).array()
    memory[5 * STEP] = 9
    populate(memory[1 : 7 * STEP])
    assert memory[5 * STEP] == 9 and int(memory.sum()) == 9
