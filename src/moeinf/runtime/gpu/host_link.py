"""The reader of a device tier: copies from host memory, with the disk behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf._native import ReadFailure
from moeinf.runtime.cache.loader import DEMAND
from moeinf.runtime.cache.table import ABSENT, LOADING
from moeinf.runtime.gpu.copies import Copies
from moeinf.runtime.gpu.host_slots import HostSlots
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.types import FloatArray, IntArray

_NOTHING: Final = ReadDone(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(slots=True)
class _Request:
    """An expert that the device wants and whose copy is not submitted."""

    destination: int
    priority: float
    failed: bool = False  # its read did, and nobody knows yet


class HostLink:
    """A Reader (reader_protocol.py) into a device's slots, out of host slots that it fills from the disk. Used from
    one thread.

    An expert has LANDED for the device as soon as its copy is submitted: what computes it is then ordered behind the
    copy on the device (Copies.order_compute), so the host waits for copies only where it needs their slots again.
    Copies go in this order: demand at once, prefetches while few are under way. An expert that the host lacks is read
    into one of its slots first, for which leaves what the device tier misses least, but nothing that a copy or a
    request needs.

    Nothing moves but in calls of this class; each call moves what can go.
    """

    def __init__(self, host: HostSlots, copies: Copies, device_addresses: Callable[[IntArray], IntArray]) -> None:
        """device_addresses(offsets): where on the device the slots of the device tier lie."""
        disk = host.disk
        self.backend = disk.backend
        self._host = host
        self._cache, self._table, self._loader = host.cache, host.cache.table, host.loader
        self._disk = disk
        self._copies = copies
        self._device_addresses = device_addresses
        self._requests: dict[int, _Request] = {}  # by key, demand in the order in which it became demand
        self._landed: list[int] = []  # copies submitted, and not collected

    # ---- moeinf.runtime.io.reader_protocol.Reader

    @property
    def notice(self) -> str:
        return self._disk.notice

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        """Does as Reader.submit; where an expert lies in the files, and its size, follow from its key."""
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
            self._loader.cancel(reading.tolist())
        return cancelled

    def known(self, keys: IntArray) -> IntArray:
        return np.array([key for key in keys.tolist() if key in self._requests or key in self._landed], np.int64)

    def wait_any(self, keys: IntArray) -> IntArray:
        """Does as Reader.wait_any; waits for the disk, and for copies only where all host slots are in use."""
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
        if not self._landed and not self._requests:
            return _NOTHING
        failed = [key for key, request in self._requests.items() if request.failed]
        for key in failed:
            del self._requests[key]
        landed, self._landed = self._landed, []
        return ReadDone(np.array(landed, np.int64), np.array(failed, np.int64))

    def bytes_read(self) -> int:
        """Bytes that have come to the device."""
        return self._copies.bytes_copied()

    def busy_seconds(self) -> float:
        """How long the slower of disk and copies was busy: bytes_read / busy_seconds is the rate of both together."""
        return max(self._copies.busy_seconds(), self._host.busy_seconds())

    def close(self) -> bool:
        """Ends the disk's reader, and waits for copies. The copier stays open."""
        self._requests.clear()
        ended = self._disk.close()
        while self._copies.any_under_way:
            self._copies.wait()
        return ended

    # ---- beside it

    def advance(self) -> None:
        """Moves what can go, without blocking: of use while nobody asks for anything."""
        if not self._requests:
            return
        requests = self._requests
        in_order = sorted(requests, key=lambda key: -requests[key].priority)  # stable
        missing, _, held = self._cache.by_state(in_order)
        demand = [key for key in held if requests[key].priority == DEMAND]
        self._copy_requested(demand, demand=True)
        if len(held) > len(demand):
            self._copies.retire()
            self._copy_requested(held[len(demand) :][: max(0, self._copies.prefetch_room)], demand=False)
        if absent := [key for key in missing if not requests[key].failed]:
            self._read(absent)

    def check_integrity(self) -> None:
        """Asserts what always holds; tests call it after every step."""
        assert not self._requests.keys() & set(self._landed), "an expert has landed and is requested"

    # ---- inside

    def _tell_disk(self, keys: Sequence[int]) -> None:
        """Passes the priorities that the device gives these requests on to the disk, for those that are being read."""
        reading = self._cache.by_state(list(keys))[LOADING] if self._table.num_loading else []
        if reading:
            self._disk.reprioritise(np.array(reading), np.array([self._requests[key].priority for key in reading]))

    def _copy_requested(self, keys: Sequence[int], *, demand: bool) -> None:
        if keys:
            destinations = np.array([self._requests.pop(key).destination for key in keys])
            wanted = np.array(keys)
            addresses = self._host.addresses(wanted), self._device_addresses(destinations)
            self._copies.submit(wanted, *addresses, demand=demand)
            self._landed += keys

    def _read(self, absent: Sequence[int]) -> None:
        """Queues reads of as many as find slots, in this order; prefetches leave half of each size to demand."""
        requests, table = self._requests, self._table
        placed = table.classes_of([key for key in requests if table.state[key] != ABSENT])
        room = [max(1, count // 2) for count in table.slots_by_class()]
        for which in placed.tolist():
            room[which] -= 1
        wanted: list[int] = []
        for key, which in zip(absent, table.classes_of(absent).tolist(), strict=True):
            if requests[key].priority == DEMAND or room[which] > 0:
                wanted.append(key)
            room[which] -= 1
        if not wanted:
            return
        held: list[int] = []
        if len(table.first_with_slots(np.array(wanted))) < len(wanted):
            self._copies.retire()
            held = [*requests, *self._copies.under_way()]
        if keys := self._cache.make_room(wanted, also_held=held):
            self._loader.submit(keys, [requests[key].priority for key in keys])

    def _poll_disk(self) -> None:
        if self._table.num_loading:
            for key in self._loader.poll():
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
        others = reading or self._table.loading()
        assert others, "every host slot is held, and nothing is on its way"
        try:
            self._loader.wait(others)
        except ReadFailure as failure:
            if failure.key in wanted:
                del self._requests[failure.key]
                raise
            self._note_failure(failure.key)
