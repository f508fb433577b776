"""How experts come into a cache: the reader that fills its slots, from absent to resident."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from moeinf import _native
from moeinf._native import ReadFailure
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.table import ABSENT, LOADING, NO_EXPERT, RESIDENT
from moeinf.runtime.io.pages import PagesAhead
from moeinf.runtime.io.read_places import BlockReads, PlacedReads, expert_reads
from moeinf.runtime.io.reader_protocol import Reader
from moeinf.types import ByteArray, IntArray

DEMAND: Final = math.inf
LOAD_BYTES_AHEAD: Final = 256 << 20  # queued while slots are loaded in order: keeps the disk busy, the queue short
FILL_BYTES_AHEAD: Final = 64 << 20  # queued while nobody waits: a request that comes waits for what has begun of it


class Loader(_native.Loader):
    """Reads experts into the slots of a cache. Keys are layer * num_experts + expert. Used from one thread."""

    def __init__(
        self,
        cache: ExpertCache,
        reader: Reader,
        memory: ByteArray | None = None,
        load_bytes_ahead: int = LOAD_BYTES_AHEAD,
        placed: PlacedReads | None = None,
    ) -> None:
        """memory: the arena of the slots, if its pages are to be taken ahead of the reads.

        placed: how experts are read that do not lie in files of the store's own, block behind block, a file a layer.
        load_bytes_ahead: how many bytes are queued while the slots are filled in order.
        """
        self._pages = None if memory is None else PagesAhead(memory)
        reads = placed or BlockReads(reader, cache.shape, cache.stride_bytes)
        super().__init__(cache, expert_reads(reader, reads, self._pages, cache.stride_bytes), cache.slices)
        self._cache = cache
        self._load_bytes_ahead = load_bytes_ahead

    def load_next(self, progress: Callable[[int, int], None]) -> bool:
        """Reads some of the absent experts, in the order of the files; returns False once the slots are full.

        progress(bytes done, bytes in all). Raises ReadFailure; after it, or an interrupt, what has landed stays.
        """
        table, stride_bytes = self._cache.table, self._cache.stride_bytes
        num_experts = table.most_held
        total_bytes = min(table.num_bytes, table.bytes_for(table.state != NO_EXPERT))
        progress(table.bytes_for(table.state == RESIDENT), total_bytes)
        if table.num_resident >= num_experts:
            return False
        coming = np.flatnonzero(table.state == LOADING)
        at_once = max(2, self._load_bytes_ahead // stride_bytes)
        room = min(at_once, num_experts - table.num_resident) - len(coming)
        more = table.first_with_slots(np.flatnonzero(table.state == ABSENT))[: max(0, room)]
        if len(more):
            self.submit(more.tolist(), [DEMAND] * len(more))
        self.wait(coming.tolist() + more.tolist())
        return True

    def fill_next(self, keys: IntArray) -> bool:
        """Queues reads of the absent ones of `keys`, the first ones first, as far as slots are free; waits for none.

        Returns whether any of the keys is on its way now. A read that fails ends it: nobody needs the expert so far.
        """
        failed, table = self.poll(), self._cache.table
        state = table.state[keys]
        coming, absent = int((state == LOADING).sum()), table.first_with_slots(keys[state == ABSENT])
        at_once = max(2, FILL_BYTES_AHEAD // self._cache.stride_bytes)
        more = absent[: max(0, at_once - coming)]
        if failed or not coming + len(more):
            return False
        if len(more):
            self.submit(more.tolist(), [0.0] * len(more))
        return True

    def drain(self, keys: IntArray) -> None:
        """Drops reads of `keys`, or waits for them: afterwards none of them is on its way."""
        while len(coming := self._still_coming(keys)):
            with suppress(ReadFailure):  # nobody needs it
                self.wait(coming.tolist())

    def drains_within(self, seconds: float, keys: IntArray) -> bool:
        """Does as `drain`, but gives up on a disk that does not answer; returns whether none is on its way any more."""
        give_up_at = time.monotonic() + seconds
        while len(self._still_coming(keys)):
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.001)
        return True

    def end_memory_at(self, offset_bytes: int) -> None:
        """Says that the slots end there from now on: host memory behind that goes back to the machine.

        Nothing may be on its way to it.
        """
        if self._pages is not None:
            self._pages.resize(offset_bytes)

    @property
    def untaken_bytes(self) -> int:
        """About how much of the host's memory the slots will still take as they are filled."""
        return 0 if self._pages is None else self._pages.untaken_bytes

    def _still_coming(self, keys: IntArray) -> IntArray:
        """Drops reads of `keys` that have not begun; returns the keys of those that have, and have not ended."""
        state = self._cache.table.state
        self.poll()
        self.cancel(keys[state[keys] == LOADING].tolist())
        coming: IntArray = keys[state[keys] == LOADING]
        return coming
