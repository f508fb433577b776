"""Slots and the reader that fills them: from absent to resident, and back where a read ends in nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from moeinf._native import ReadFailure
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import ABSENT, LOADING, SlotTable
from moeinf.runtime.io.pages import PagesAhead
from moeinf.types import ByteArray, ExpertLayout, FloatArray, IntArray, MoeShape, Reader

DEMAND: Final = np.inf
LOAD_BYTES_AHEAD: Final = 256 << 20  # queued while slots are loaded in order: keeps the disk busy, the queue short


class FilledSlots:
    """Moves experts through the states of `table` by means of `reader`. Keys are layer * num_experts + expert."""

    def __init__(
        self,
        table: SlotTable,
        reader: Reader,
        shape: MoeShape,
        layout: ExpertLayout,
        memory: ByteArray | None,
        stats: CacheStats,
    ) -> None:
        """memory: what the slots are offsets of, where its pages are to be taken ahead of the reads.

        stats: where prefetches in vain are counted.
        """
        self.table = table
        self.reader = reader
        self.all_resident = False  # once true, until slots are taken away: nothing can be missing, nothing is evicted
        self._stats = stats
        keys = np.arange(shape.total_experts)
        self._file_of: IntArray = keys // shape.num_experts
        self._offset_in_file: IntArray = keys % shape.num_experts * layout.stride_bytes
        self._stride_bytes = layout.stride_bytes
        self._pages = None if memory is None else PagesAhead(memory)

    def submit(self, keys: IntArray, priorities: FloatArray) -> None:
        """Queues reads of absent experts. There must be as many free slots."""
        offsets = self.table.assign(keys)
        if self._pages is not None and not self._pages.all_taken:
            self._pages.reach(int(offsets.max()) + self._stride_bytes)
        files, starts = self._file_of[keys], self._offset_in_file[keys]
        self.reader.submit(keys, files, starts, offsets, self._stride_bytes, priorities)

    def poll(self) -> IntArray:
        """Collects what has ended; returns the keys that failed, whose slots are free again."""
        done, failed = self.reader.poll()
        self.land(done)
        if len(failed):
            self.release(failed.tolist())
        return failed

    def wait(self, keys: IntArray) -> IntArray:
        """Blocks until one of the keys or more has landed, and returns them.

        Raises ReadFailure; the slot of its key is free again.
        """
        try:
            landed = self.reader.wait_any(keys)
        except ReadFailure as failure:
            self.release([failure.key])
            raise
        self.land(landed)
        return landed

    def land(self, keys: IntArray) -> None:
        if len(keys):
            self.table.land(keys)
            self.all_resident = self.table.num_resident == len(self.table.state)

    def release(self, keys: Sequence[int]) -> None:
        """Residents, or experts whose reads have ended without them, give up their slots."""
        self._stats.prefetches_wasted += self.table.release(keys)

    def cancel(self, keys: IntArray) -> IntArray:
        """Drops reads of which nothing was issued; returns the keys, whose slots are free again."""
        cancelled = self.reader.cancel(keys)
        self.release(cancelled.tolist())
        return cancelled

    def load_more(self, progress: Callable[[int, int], None]) -> bool:
        """A step of filling the slots, the lowest absent keys first: the order of the files. False: they are full.

        progress(bytes done, bytes in all). Raises ReadFailure; after it, or an interrupt, what has landed stays.
        """
        table, stride_bytes = self.table, self._stride_bytes
        num_experts = min(table.num_slots, len(table.state))
        progress(table.num_resident * stride_bytes, num_experts * stride_bytes)
        if table.num_resident >= num_experts:
            return False
        coming = np.flatnonzero(table.state == LOADING)
        at_once = max(2, LOAD_BYTES_AHEAD // stride_bytes)
        room = min(at_once, num_experts - table.num_resident) - len(coming)
        more = np.flatnonzero(table.state == ABSENT)[: max(0, room)]
        if len(more):
            self.submit(more, np.full(len(more), DEMAND))
        self.wait(np.concatenate((coming, more)))
        return True

    @property
    def untaken_bytes(self) -> int:
        """What the slots will still take of the host's memory as they are filled, about."""
        return 0 if self._pages is None else self._pages.untaken_bytes

    def shrink(self, num_slots: int) -> None:
        """Gives up all but the lowest `num_slots`, with what lies in them; waits for reads that go on into them.

        The host's memory goes back to the machine.
        """
        self.settle(self.table.beyond(num_slots))
        self.release(self.table.beyond(num_slots).tolist())
        self.table.shrink(num_slots)
        self._after_resizing()

    def grow(self, num_slots: int) -> None:
        """Takes slots again that were given up, so that there are `num_slots`."""
        self.table.grow(num_slots)
        self._after_resizing()

    def _after_resizing(self) -> None:
        self.all_resident = self.table.num_resident == len(self.table.state)
        if self._pages is not None:
            self._pages.resize(self.table.end_offset)

    def settle(self, keys: IntArray) -> None:
        """Of `keys`, nothing is on its way any more: reads are dropped, or waited for."""
        self.poll()
        self.cancel(keys[self.table.state[keys] == LOADING])
        while len(coming := keys[self.table.state[keys] == LOADING]):
            with suppress(ReadFailure):  # nobody waits for it
                self.wait(coming)

    def settles_within(self, seconds: float, keys: IntArray) -> bool:
        """As `settle`, but leaves a disk alone that does not answer; returns whether nothing is on its way any more."""
        give_up_at = time.monotonic() + seconds
        while True:
            self.poll()
            self.cancel(keys[self.table.state[keys] == LOADING])
            if not (self.table.state[keys] == LOADING).any():
                return True
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.001)

    def adopt(self, slots: IntArray) -> None:
        """The slots hold what another has brought into them: SlotTable.adopt."""
        self.table.adopt(slots)
        self.all_resident = self.table.num_resident == len(self.table.state)
