"""Experts in host memory on their way to a device: the tier below the device's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeinf._native import ReadFailure
from moeinf.runtime.cache.cache import ExpertCache, ScoresBelow
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.table import RESIDENT, BoolArray, SlotRegion
from moeinf.runtime.io.reader_protocol import Reader
from moeinf.types import Copier, IntArray


class HostSlots:
    """Slots of host memory that the disk fills and that a device copies from, or reads itself where they are pinned.

    Nothing leaves them where they hold every expert.
    """

    def __init__(self, above: ExpertCache, slots: SlotRegion, disk: Reader, copier: Copier, errors: ReadErrors) -> None:
        """above: the cache of the device's slots, from which follows what leaves here. disk reads into slots.memory."""
        assert slots.memory is not None
        self.cache = ExpertCache(above.shape, slots, ScoresBelow(above))
        self.loader = Loader(self.cache, disk, slots.memory)
        self.disk = disk
        self._copier = copier
        self._errors = errors
        self._memory = slots.memory
        self._start: int = slots.memory.ctypes.data
        self._pinned_bytes = 0
        self._device_addresses: IntArray | None = None
        self._loading_busy_s = 0.0  # the disk's busy seconds that brought nothing to the device

    @property
    def has_room_for_all(self) -> bool:
        """Whether there is a slot for every expert that may come here."""
        table = self.cache.table
        return table.most_held == table.total_experts

    def load_all(self, progress: Callable[[int, int], None]) -> None:
        """Fills the slots in the order of the files. progress(bytes done, bytes in all). Raises ExpertReadError."""
        try:
            while self.loader.load_next(progress):
                pass
        except ReadFailure as failure:
            raise self._errors.explain(failure) from failure
        finally:
            self._loading_busy_s = self.disk.busy_seconds()

    def busy_seconds(self) -> float:
        """How long the disk was busy with what the device asked for."""
        return self.disk.busy_seconds() - self._loading_busy_s

    def addresses(self, keys: IntArray) -> IntArray:
        """Returns where the blocks of experts lie; they must have slots."""
        found: IntArray = self.cache.table.offset_of[keys] + self._start
        return found

    # ---- pinned memory

    def pin(self, num_bytes: int, progress: Callable[[int], None] | None = None) -> int:
        """Registers so much of the memory with the copier, as far as the system allows; returns the bytes pinned.

        progress(bytes pinned so far) may raise to end it: what is pinned then, the copier gives back when it is closed.
        """
        ends = self.cache.table.ends()
        self._pinned_bytes = self._copier.register(self._memory, ends[ends <= num_bytes], progress)
        self._device_addresses = None
        return self._pinned_bytes

    @property
    def device_reaches_all(self) -> bool:
        """Whether every expert lies in pinned memory, for good."""
        return self.cache.table.all_resident and len(self.device_addresses()) > 0

    def device_addresses(self) -> IntArray:
        """[layers * experts]: where the device reads an expert's block in host memory; empty where it cannot read all.

        Every expert must be there.
        """
        table = self.cache.table
        assert table.all_resident
        if self._device_addresses is None:
            self._device_addresses = np.empty(0, np.int64)
            keys = table.held()
            if int((table.offset_of + table.slot_bytes)[keys].max()) <= self._pinned_bytes:
                at = zip(self.addresses(keys).tolist(), table.slot_bytes[keys].tolist(), strict=True)
                self._device_addresses = np.zeros(len(table.state), np.int64)
                self._device_addresses[keys] = [self._copier.device_address(*each) for each in at]
        return self._device_addresses

    # ---- experts that the CPU computes

    def holds(self, keys: IntArray) -> BoolArray:
        """Returns which of the keys lie in the slots."""
        holds: BoolArray = self.cache.table.state[keys] == RESIDENT
        return holds

    def hold(self, keys: IntArray) -> IntArray:
        """Keeps experts that are there where they are until `release`; returns the offsets of their blocks."""
        assert self.holds(keys).all(), "only what the host holds can be kept there"
        self.cache.pin(keys.tolist())
        return self.cache.table.offset_of[keys]

    def release(self, keys: IntArray) -> None:
        self.cache.unpin(keys.tolist())

    def check_integrity(self) -> None:
        """Asserts what always holds while nothing is held; tests call it after every step."""
        self.cache.check_integrity()
