"""Memory that is taken from the machine shortly before it is read into."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Final

from moeinf._native import populate
from moeinf.types import ByteArray

AHEAD_BYTES: Final = 256 << 20  # 0.1 s of a fast disk
PIECE_BYTES: Final = 16 << 20
NUM_THREADS: Final = 2  # where the machine zeroes no faster than the disk reads, one would not do


class PagesAhead:
    """Keeps the pages of `memory` taken up to AHEAD_BYTES beyond where reads go, if these go from its start to its end.

    Else the thread that submits reads has the kernel find and zero the pages: 1.4 instead of 2.8 GB/s as measured. A
    hint: where the machine cannot do it, pages come with the reads. Memory ahead of the reads is all that it costs.
    """

    def __init__(self, memory: ByteArray) -> None:
        self._memory = memory
        self._taken_bytes = 0
        self.all_taken = len(memory) <= PIECE_BYTES  # not worth a thread

    def reach(self, end_bytes: int) -> None:
        """Reads up to `end_bytes` of the memory are about to be queued. Does not block."""
        if end_bytes + AHEAD_BYTES // 2 <= self._taken_bytes or self.all_taken:
            return
        start, end = self._taken_bytes, min(end_bytes + AHEAD_BYTES, len(self._memory))
        take(deque(self._memory[at : min(at + PIECE_BYTES, end)] for at in range(start, end, PIECE_BYTES)))
        self._taken_bytes, self.all_taken = end, end == len(self._memory)


def take(pieces: deque[ByteArray]) -> None:
    """Takes the pages of `pieces`, in this order, in threads that end with them. Does not block.

    Whoever clears the queue ends the threads early.
    """
    for _ in range(NUM_THREADS):
        threading.Thread(target=_take, args=(pieces,), name="moeinf-pages", daemon=True).start()


def _take(pieces: deque[ByteArray]) -> None:
    with suppress(IndexError):  # the queue is empty
        while populate(pieces.popleft()):
            pass
