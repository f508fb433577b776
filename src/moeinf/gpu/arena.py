"""Device memory for expert slots, in segments, so that a part can be given back."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.device import Device
from moeinf.types import IntArray

SEGMENT_BYTES: Final = 512 << 20


class DeviceArena:
    """Slots that begin at `begins`, as if the segments were one memory, and lie at `slot_addresses`."""

    def __init__(self, device: Device, begins: IntArray, segment_bytes: int = SEGMENT_BYTES) -> None:
        """begins: in bytes, of each slot that there may be, and at last where they end."""
        self.slot_addresses: IntArray = np.empty(0, np.int64)
        self._begins = begins
        self._device = device
        self._segment_bytes = segment_bytes
        self._segments: list[Tensor] = []
        self._firsts: list[int] = []  # the first slot of each segment

    def take(self, num_slots: int) -> None:
        """Takes memory for so many slots, or for as many as there is memory for."""
        assert not self._segments, "slots are taken once"
        begins, addresses, first = self._begins, list[IntArray](), 0
        while first < num_slots:
            fit = int(np.searchsorted(begins, begins[first] + self._segment_bytes, side="right")) - 1
            last = min(num_slots, max(first + 1, fit))
            num_bytes = int(begins[last] - begins[first])
            try:
                segment = torch.empty(num_bytes, dtype=torch.uint8, device=self._device.kind)
            except torch.OutOfMemoryError:
                break
            self._segments.append(segment)
            self._firsts.append(first)
            addresses.append(segment.data_ptr() + begins[first:last] - begins[first])
            first = last
        self.slot_addresses = np.concatenate(addresses) if addresses else self.slot_addresses

    @property
    def num_slots(self) -> int:
        return len(self.slot_addresses)

    def addresses(self, offsets: IntArray) -> IntArray:
        """Where on the device the slots at `offsets` lie."""
        found: IntArray = self.slot_addresses.take(self._begins.searchsorted(offsets))
        return found

    def smaller(self) -> int:
        """How many slots would be left without the last segment."""
        return self._firsts[-1]

    def shrink(self) -> None:
        """Gives the last segment back; nothing may lie in it any more, and no submitted work use it."""
        self._segments.pop()
        self.slot_addresses = self.slot_addresses[: self._firsts.pop()]

    def release(self) -> None:
        """Gives all of it back, as `shrink` a part."""
        self._segments.clear()
        self._firsts.clear()
        self.slot_addresses = self.slot_addresses[:0]
