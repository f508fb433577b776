"""Memory that is taken from the machine shortly before it is read into, and given back when slots are given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from moeinf._native import PageTaker, give_back
from moeinf.types import ByteArray

AHEAD_BYTES: Final = 256 << 20  # 0.1 s of a fast disk
LEAST_BYTES: Final = 16 << 20  # of memory that is worth threads
HUGE_PAGE_BYTES: Final = 2 << 20  # on such borders arenas begin; a part of such a page would not be free for others


class Taker(Protocol):
    """What takes pages in the background: see PageTaker."""

    def take(self, start: int, end: int) -> None: ...

    def drop(self, start: int) -> None: ...


class PagesAhead:
    """Keeps the pages of `memory` taken a little beyond where reads go, if these go from its start to its end.

    Else the thread that submits reads has the kernel find and zero the pages: 1.4 instead of 2.8 GB/s as measured. A
    hint: where the machine cannot do it, pages come with the reads. Memory ahead of the reads is all that it costs.
    """

    def __init__(
        self,
        memory: ByteArray,
        *,
        ahead_bytes: int = AHEAD_BYTES,
        taker: Callable[[ByteArray], Taker] = PageTaker,
        give_back: Callable[[ByteArray], bool] = give_back,
    ) -> None:
        """taker and give_back: how pages are asked for, and given back."""
        self._memory = memory
        self._ahead_bytes = ahead_bytes
        self._taker, self._give_back = taker(memory), give_back
        self._end_bytes = len(memory)  # of what may be taken
        self._taken_bytes = 0
        self.all_taken = len(memory) <= LEAST_BYTES

    @property
    def untaken_bytes(self) -> int:
        """About how much of the machine's memory reads will still take."""
        return 0 if self.all_taken else self._end_bytes - self._taken_bytes

    def reach(self, end_bytes: int) -> None:
        """Says that reads up to `end_bytes` of the memory are about to be queued. Does not block."""
        if end_bytes + self._ahead_bytes // 2 <= self._taken_bytes or self.all_taken:
            return
        start, end = self._taken_bytes, min(end_bytes + self._ahead_bytes, self._end_bytes)
        self._taker.take(start, end)
        self._taken_bytes, self.all_taken = end, end == self._end_bytes

    def resize(self, end_bytes: int) -> None:
        """Ends the memory at `end_bytes` from now on; what lies beyond goes back to the machine.

        No read may be under way there.
        """
        if end_bytes < self._end_bytes:
            self._taker.drop(end_bytes)
            self._give_back(self._memory[_whole_pages(end_bytes) : _whole_pages(self._end_bytes)])
            self._taken_bytes = min(self._taken_bytes, end_bytes)
        self._end_bytes = end_bytes
        self.all_taken = self._taken_bytes == end_bytes or len(self._memory) <= LEAST_BYTES


def _whole_pages(end_bytes: int) -> int:
    """Returns where the huge page ends that the last of so many bytes lies in."""
    return -(-end_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
