"""How experts come into a cache: the reader that fills its slots, from absent to resident."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from moeinf._native import ReadFailure
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.slices import keys_of_slices
from moeinf.runtime.cache.table import ABSENT, LOADING, RESIDENT
from moeinf.runtime.io.pages import PagesAhead
from moeinf.runtime.io.places import PlacedReads
from moeinf.runtime.io.protocol import Reader
from moeinf.types import ByteArray, FloatArray, IntArray

DEMAND: Final = np.inf
LOAD_BYTES_AHEAD: Final = 256 << 20  # queued while slots are loaded in order: keeps the disk busy, the queue short
FILL_BYTES_AHEAD: Final = 64 << 20  # queued while nobody waits: a request that comes waits for what has begun of it

_NO_KEYS: Final[IntArray] = np.empty(0, np.int64)


class Loader:
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
        self.reader = reader
        self._cache = cache
        keys = np.arange(cache.shape.num_keys)
        self._file_of: IntArray = keys // cache.shape.num_experts
        self._offset_in_file: IntArray = keys % cache.shape.num_experts * cache.stride_bytes
        self._pages = None if memory is None else PagesAhead(memory)
        self._load_bytes_ahead = load_bytes_ahead
        self._placed = placed

    def submit(self, keys: IntArray, priorities: FloatArray) -> None:
        """Queues reads of absent experts. There must be as many free slots."""
        cache = self._cache
        offsets = cache.table.assign(keys)
        if self._pages is not None and not self._pages.all_taken:
            self._pages.reach(int(offsets.max()) + cache.stride_bytes)
        if self._placed is not None:
            self._placed.submit(keys, offsets, priorities)
            return
        files, starts = self._file_of[keys], self._offset_in_file[keys]
        self.reader.submit(keys, files, starts, offsets, cache.stride_bytes, priorities)

    def poll(self) -> IntArray:
        """Collects what has ended; returns the keys that failed, whose slots are free again."""
        if not self._cache.table.num_loading:
            return _NO_KEYS
        done, failed = self.reader.poll()
        if len(done):
            self._cache.table.land(done)
        if len(failed):
            self._release_failed(failed.tolist())
        return failed

    def wait(self, keys: IntArray) -> IntArray:
        """Blocks until one of the keys or more has landed, and returns them.

        Raises ReadFailure; the slot of its key is free again.
        """
        try:
            landed = self.reader.wait_any(keys)
        except ReadFailure as failure:
            self._release_failed([failure.key])
            raise
        self._cache.table.land(landed)
        return landed

    def cancel(self, keys: IntArray) -> int:
        """Drops reads of which nothing was issued; returns how many of them were prefetches.

        The slots of what is dropped are free again.
        """
        return self._cache.release(self.reader.cancel(keys).tolist())

    def load_next(self, progress: Callable[[int, int], None]) -> bool:
        """Reads some of the absent experts, in the order of the files; returns False once the slots are full.

        progress(bytes done, bytes in all). Raises ReadFailure; after it, or an interrupt, what has landed stays.
        """
        table, stride_bytes = self._cache.table, self._cache.stride_bytes
        num_experts = min(table.num_slots, table.total_experts)
        progress(table.num_resident * stride_bytes, num_experts * stride_bytes)
        if table.num_resident >= num_experts:
            return False
        coming = np.flatnonzero(table.state == LOADING)
        at_once = max(2, self._load_bytes_ahead // stride_bytes)
        room = min(at_once, num_experts - table.num_resident) - len(coming)
        more = np.flatnonzero(table.state == ABSENT)[: max(0, room)]
        if len(more):
            self.submit(more, np.full(len(more), DEMAND))
        self.wait(np.concatenate((coming, more)))
        return True

    def fill_next(self, keys: IntArray) -> bool:
        """Queues reads of the absent ones of `keys`, the first ones first, as far as slots are free; waits for none.

        Returns whether any of the keys is on its way now. A read that fails ends it: nobody needs the expert so far.
        """
        failed, table = self.poll(), self._cache.table
        state = table.state[keys]
        coming, absent = int((state == LOADING).sum()), keys[state == ABSENT]
        at_once = max(2, FILL_BYTES_AHEAD // self._cache.stride_bytes)
        more = absent[: max(0, min(at_once - coming, table.num_free))]
        if len(failed) or not coming + len(more):
            return False
        if len(more):
            self.submit(more, np.zeros(len(more)))
        return True

    def drain(self, keys: IntArray) -> None:
        """Drops reads of `keys`, or waits for them: afterwards none of them is on its way."""
        while len(coming := self._still_coming(keys)):
            with suppress(ReadFailure):  # nobody needs it
                self.wait(coming)

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

    def _release_failed(self, keys: list[int]) -> None:
        """Frees the slots of reads that have failed; with them those of the same experts' other slices.

        Of an expert that is damaged nobody knows which slice it is, so that all are to be read again.
        """
        table, slices = self._cache.table, self._cache.slices
        self._cache.release(keys)
        if slices > 1:
            every = keys_of_slices(np.unique(np.array(keys) // slices), slices)
            self._cache.release(every[table.state[every] == RESIDENT].tolist())

    def _still_coming(self, keys: IntArray) -> IntArray:
        """Drops reads of `keys` that have not begun; returns the keys of those that have, and have not ended."""
        state = self._cache.table.state
        self.poll()
        self.cancel(keys[state[keys] == LOADING])
        coming: IntArray = keys[state[keys] == LOADING]
        return coming
