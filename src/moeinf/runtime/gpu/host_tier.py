"""The reader of a device tier: host memory, with the disk behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moeinf._native import ReadFailure
from moeinf.runtime.cache.loader import DEMAND, FilledSlots
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import ABSENT, LOADING, RESIDENT, BoolArray, SlotTable
from moeinf.runtime.cache.tier import SlotRegion
from moeinf.runtime.gpu.copies import Copies
from moeinf.types import Copier, ExpertLayout, FloatArray, IntArray, MoeShape, ReadDone, Reader


@dataclass(slots=True)
class _Request:
    """An expert that the device wants and whose copy is not submitted."""

    destination: int
    priority: float
    failed: bool = False  # its read did, and nobody knows yet


class HostLink:
    """moeinf.types.Reader into a device's slots, out of host slots that it fills from the disk. Used from one thread.

    An expert has LANDED for the device as soon as its copy is submitted: what computes it is then ordered behind the
    copy on the device (`order_compute`), so the host waits for copies only where it needs their slots again. Copies go
    in this order: demand at once, prefetches while few are under way. An expert that the host lacks is read into one of
    its slots first, for which leaves what `keep_scores` values least, but nothing that a copy or a request needs.

    Nothing moves but in calls of this class; each call moves what can go. Nothing leaves the host where it holds all.
    """

    def __init__(
        self,
        shape: MoeShape,
        layout: ExpertLayout,
        slots: SlotRegion,
        disk: Reader,
        copier: Copier,
        device_addresses: Callable[[IntArray], IntArray],
        compute_stream: Callable[[], int],
        keep_scores: Callable[[], FloatArray],
    ) -> None:
        """disk reads into slots.memory. device_addresses: of the offsets that the device tier calls its slots.

        keep_scores() [layers * experts]: ExpertTier.keep_scores_below of the tier above.
        """
        assert slots.memory is not None and slots.num_slots >= 1
        self.num_slots = slots.num_slots
        self.backend, self.notice = disk.backend, disk.notice
        self._stride_bytes = layout.stride_bytes
        self._table = SlotTable(shape.total_experts, slots.offset_bytes, layout.stride_bytes, slots.num_slots)
        self._filled = FilledSlots(self._table, disk, shape, layout, slots.memory, CacheStats())
        self._memory = slots.memory
        self._start: int = slots.memory.ctypes.data
        self._pinned_bytes = 0
        self._reachable: IntArray | None = None
        self._disk = disk
        self._copier = copier
        self._device_addresses = device_addresses
        self._keep_scores = keep_scores
        self._copies = Copies(copier, layout.stride_bytes, shape.total_experts, compute_stream)
        self._requests: dict[int, _Request] = {}  # by key, demand in the order in which it became demand
        self._landed: list[int] = []  # copies submitted, and not collected
        self._loading_busy_s = 0.0  # the disk's busy seconds that brought nothing to the device

    # ---- the reader of the device tier

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        """As Reader.submit; where an expert lies in the files follows from its key."""
        assert num_bytes == self._stride_bytes, "experts come as whole blocks"
        for key, destination, priority in zip(keys.tolist(), destinations.tolist(), priorities.tolist(), strict=True):
            assert key not in self._requests, "requested twice"
            self._requests[key] = _Request(destination, priority)
        self._tell_disk(keys.tolist())
        self.advance()

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        requested: list[int] = []
        for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
            if request := self._requests.get(key):
                if priority == DEMAND != request.priority:
                    self._requests[key] = self._requests.pop(key)  # behind the demand that was there before
                request.priority = priority
                requested.append(key)
        self._tell_disk(requested)
        self.advance()

    def cancel(self, keys: IntArray) -> IntArray:
        """Drops what is not submitted to the copier; a read under way goes on, and ends in the host's slots."""
        cancelled = np.array([key for key in keys.tolist() if self._requests.pop(key, None)], np.int64)
        reading = cancelled[self._table.state[cancelled] == LOADING]
        if len(reading):
            self._filled.cancel(reading)
        return cancelled

    def wait_any(self, keys: IntArray) -> IntArray:
        """As Reader.wait_any. Waits for the disk, or for copies where all host slots are in use, not for the copies."""
        wanted = keys.tolist()
        if not (landed := self._collect(wanted)):
            self._poll_disk()
        while not landed:
            for key in wanted:
                self._requests[key].failed = False  # read again: then the failure says what it is
            self.advance()
            if not (landed := self._collect(wanted)):
                self._wait(wanted)
        return np.array(landed, np.int64)

    def poll(self) -> ReadDone:
        self._poll_disk()
        self.advance()
        failed = [key for key, request in self._requests.items() if request.failed]
        for key in failed:
            del self._requests[key]
        landed, self._landed = self._landed, []
        return ReadDone(np.array(landed, np.int64), np.array(failed, np.int64))

    def bytes_read(self) -> int:
        """Bytes that have come to the device."""
        return self._copier.bytes_copied()

    def busy_seconds(self) -> float:
        """Of the slower part of the way, so that bytes_read / busy_seconds is the rate of the whole."""
        return max(self._copier.busy_seconds(), self._disk.busy_seconds() - self._loading_busy_s)

    def close(self) -> bool:
        """Ends the disk's reader, and waits for copies. The copier stays open."""
        self._requests.clear()
        ended = self._disk.close()
        while self._copies.any_under_way:
            self._copies.wait()
        return ended

    # ---- beside the tier

    def advance(self) -> None:
        """Moves what can go, without blocking: of use while nobody asks for anything."""
        if not self._requests:
            return
        requests = self._requests
        in_order = sorted(requests, key=lambda key: -requests[key].priority)  # stable
        missing, _, held = self._table.by_state(in_order)
        demand = [key for key in held if requests[key].priority == DEMAND]
        self._copy_requested(demand, demand=True)
        if len(held) > len(demand):
            self._copies.retire()
            self._copy_requested(held[len(demand) :][: max(0, self._copies.prefetch_room)], demand=False)
        if absent := [key for key in missing if not requests[key].failed]:
            self._read(absent)

    def lag_s(self) -> float:
        """How long the demand copies that were submitted are still under way."""
        return self._copies.lag_s()

    def ticket(self, keys: IntArray) -> int:
        """The copier's ticket with which all of `keys` are on the device; NO_TICKET where none was ever copied."""
        return self._copies.ticket(keys)

    def last_ticket(self) -> int:
        return self._copies.last_ticket

    def order_compute(self, keys: IntArray | None = None) -> None:
        """What compute is given next comes behind the copies of `keys`; None: behind all that were submitted."""
        self._copies.order_compute(keys)

    # ---- host memory

    def load_host(self, progress: Callable[[int, int], None]) -> None:
        """Fills the host's slots in the order of the files. progress(bytes done, bytes in all). Raises ReadFailure."""
        try:
            while self._filled.load_more(progress):
                pass
        finally:
            self._loading_busy_s = self._disk.busy_seconds()

    def pin(self, num_bytes: int, progress: Callable[[int], None] | None = None) -> int:
        """Registers so much of the host's memory with the copier, as far as the system allows; bytes pinned.

        progress(bytes pinned so far) may raise to end it: what is pinned then, the copier gives back when it is closed.
        """
        self._pinned_bytes = self._copier.register(self._memory[:num_bytes], self._stride_bytes, progress)
        self._reachable = None
        return self._pinned_bytes

    @property
    def device_reaches_all(self) -> bool:
        """Whether every expert lies in pinned host memory, for good."""
        return self._filled.all_resident and len(self.reachable_addresses()) > 0

    def reachable_addresses(self) -> IntArray:
        """[layers * experts]: where the device reads an expert's block in host memory; empty where it cannot read all.

        Every expert must be in the host.
        """
        assert self._filled.all_resident
        if self._reachable is None:
            offsets = self._table.offset_of
            self._reachable = np.empty(0, np.int64)
            if int(offsets.max()) + self._stride_bytes <= self._pinned_bytes:
                addresses = self._addresses(offsets).tolist()
                seen = [self._copier.device_address(address, self._stride_bytes) for address in addresses]
                self._reachable = np.array(seen, np.int64)
        return self._reachable

    def host_holds(self, keys: IntArray) -> BoolArray:
        """Which of the keys lie in host memory."""
        holds: BoolArray = self._table.state[keys] == RESIDENT
        return holds

    def hold(self, keys: IntArray) -> IntArray:
        """Keeps experts that the host holds where they are until `release`; offsets of their blocks in its memory."""
        assert self.host_holds(keys).all(), "only what the host holds can be kept there"
        self._table.pinned.update(keys.tolist())
        return self._table.offset_of[keys]

    def release(self, keys: IntArray) -> None:
        self._table.pinned.difference_update(keys.tolist())

    def check_integrity(self) -> None:
        """Asserts what always holds while nothing is held; tests call it after every step."""
        self._table.check_integrity()
        assert not self._requests.keys() & set(self._landed), "an expert has landed and is requested"

    # ---- inside

    def _tell_disk(self, keys: Sequence[int]) -> None:
        """Of these requests, those that are being read have the priority that the device gives them now."""
        _, reading, _ = self._table.by_state(keys)
        if reading:
            self._disk.reprioritise(np.array(reading), np.array([self._requests[key].priority for key in reading]))

    def _copy_requested(self, keys: Sequence[int], *, demand: bool) -> None:
        if keys:
            destinations = np.array([self._requests.pop(key).destination for key in keys])
            wanted = np.array(keys)
            sources = self._addresses(self._table.offset_of[wanted])
            self._copies.submit(wanted, sources, self._device_addresses(destinations), demand=demand)
            self._landed += keys

    def _addresses(self, offsets: IntArray) -> IntArray:
        return offsets + self._start

    def _read(self, absent: Sequence[int]) -> None:
        """Queues reads of as many as find slots, in this order; prefetches leave half of the slots to demand."""
        requests = self._requests
        num_demand = sum(requests[key].priority == DEMAND for key in absent)
        placed = sum(self._table.state[key] != ABSENT for key in requests)
        count = self._make_room(min(len(absent), max(num_demand, max(1, self.num_slots // 2) - placed)))
        if count > 0:
            keys = np.array(absent[:count])
            self._filled.submit(keys, np.array([requests[key].priority for key in absent[:count]]))

    def _make_room(self, wanted: int) -> int:
        """How many of `wanted` host slots are free, after evicting for them what is valued least."""
        missing = wanted - self._table.num_free
        if missing > 0:
            self._copies.retire()
            held = self._table.pinned.union(self._requests, self._copies.under_way())
            self._filled.release(self._table.lowest(self._keep_scores(), held, missing))
        return min(wanted, self._table.num_free)

    def _poll_disk(self) -> None:
        if self._table.num_loading:
            for key in self._filled.poll().tolist():
                self._note_failure(key)

    def _note_failure(self, key: int) -> None:
        if key in self._requests:  # else its request was cancelled, and nobody cares
            self._requests[key].failed = True

    def _collect(self, wanted: Sequence[int]) -> list[int]:
        among = set(wanted)
        landed = [key for key in self._landed if key in among]
        if landed:
            self._landed = [key for key in self._landed if key not in among]
        return landed

    def _wait(self, wanted: Sequence[int]) -> None:
        """Blocks until something has happened that may bring one of `wanted` on its way."""
        states = self._table.state
        reading = [key for key in wanted if states[key] == LOADING]
        if not reading and self._copies.any_under_way:
            self._copies.wait()  # then a host slot is free, or a prefetch has its turn
            return
        others = np.array(reading) if reading else np.flatnonzero(states == LOADING)
        assert len(others), "every host slot is held, and nothing is on its way"
        try:
            self._filled.wait(others)
        except ReadFailure as failure:
            if failure.key in wanted:
                del self._requests[failure.key]
                raise
            self._note_failure(failure.key)
