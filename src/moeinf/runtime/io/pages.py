"""Memory that is taken from the machine shortly before it is read into, and given back when slots are given up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from moeinf._native import give_back, populate
from moeinf.types import ByteArray

AHEAD_BYTES: Final = 256 << 20  # 0.1 s of a fast disk
PIECE_BYTES: Final = 16 << 20
HUGE_PAGE_BYTES: Final = 2 << 20  # on such borders arenas begin; a part of such a page would not be free for others
NUM_THREADS: Final = 2  # where the machine zeroes no faster than the disk reads, one would not do


def take(pieces: deque[ByteArray], populate: Callable[[ByteArray], bool] = populate) -> list[threading.Thread]:
    """Takes the pages of `pieces`, in this order, in threads that end with them. Does not block.

    Whoever clears the queue ends the threads early. Where the system has no thread to give, pages come with the reads.
    populate(piece): takes the pages of a piece; False where the machine cannot.
    """

    def take_all() -> None:
        with suppress(IndexError):  # the queue is empty
            while populate(pieces.popleft()):
                pass

    threads: list[threading.Thread] = []
    with suppress(RuntimeError):
        while len(threads) < NUM_THREADS:
            thread = threading.Thread(target=take_all, name="moeinf-pages", daemon=True)
            thread.start()
            threads.append(thread)
    return threads


def take_pages_of(memory: ByteArray) -> deque[ByteArray]:
    """Takes the pages of memory that is about to be read into. Clear the queue that it returns to end that early."""
    pieces = deque(memory[at : at + PIECE_BYTES] for at in range(0, len(memory), PIECE_BYTES))
    if len(pieces) > 1:  # else not worth a thread
        take(pieces)
    return pieces


class PagesAhead:
    """Keeps the pages of `memory` taken a little beyond where reads go, if these go from its start to its end.

    Else the thread that submits reads has the kernel find and zero the pages: 1.4 instead of 2.8 GB/s as measured. A
    hint: where the machine cannot do it, pages come with the reads. Memory ahead of the reads is all that it costs.
    """

    def __init__(
        self,
        memory: ByteArray,
        *,
        piece_bytes: int = PIECE_BYTES,
        ahead_bytes: int = AHEAD_BYTES,
        take: Callable[[deque[ByteArray]], list[threading.Thread]] = take,
        give_back: Callable[[ByteArray], bool] = give_back,
    ) -> None:
        """take and give_back: how pages are asked for, in pieces, and given back."""
        self._memory = memory
        self._piece_bytes, self._ahead_bytes = piece_bytes, ahead_bytes
        self._take, self._give_back = take, give_back
        self._end_bytes = len(memory)  # of what may be taken
        self._taken_bytes = 0
        self._taking: list[tuple[deque[ByteArray], list[threading.Thread]]] = []  # where the reads are faster, several
        self.all_taken = len(memory) <= piece_bytes  # not worth a thread

    @property
    def untaken_bytes(self) -> int:
        """About how much of the machine's memory reads will still take."""
        return 0 if self.all_taken else self._end_bytes - self._taken_bytes

    def reach(self, end_bytes: int) -> None:
        """Says that reads up to `end_bytes` of the memory are about to be queued. Does not block."""
        if end_bytes + self._ahead_bytes // 2 <= self._taken_bytes or self.all_taken:
            return
        start, end = self._taken_bytes, min(end_bytes + self._ahead_bytes, self._end_bytes)
        step = self._piece_bytes
        pieces = deque(self._memory[at : min(at + step, end)] for at in range(start, end, step))
        under_way = [taking for taking in self._taking if any(thread.is_alive() for thread in taking[1])]
        self._taking = [*under_way, (pieces, self._take(pieces))]
        self._taken_bytes, self.all_taken = end, end == self._end_bytes

    def resize(self, end_bytes: int) -> None:
        """Ends the memory at `end_bytes` from now on; what lies beyond goes back to the machine.

        No read may be under way there.
        """
        if end_bytes < self._end_bytes:
            for pieces, _ in self._taking:
                pieces.clear()
            for thread in [thread for _, threads in self._taking for thread in threads]:
                thread.join()
            self._give_back(self._memory[_whole_pages(end_bytes) : _whole_pages(self._end_bytes)])
            self._taken_bytes = min(self._taken_bytes, end_bytes)
        self._end_bytes = end_bytes
        self.all_taken = self._taken_bytes == end_bytes or len(self._memory) <= self._piece_bytes


def _whole_pages(end_bytes: int) -> int:
    """Returns where the huge page ends that the last of so many bytes lies in."""
    return -(-end_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
