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
    """Slots of `slot_bytes` each. Their offsets are slot number * slot_bytes, as if the segments were one memory."""

    def __init__(self, device: Device, slot_bytes: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.slot_bytes = slot_bytes
        self.slot_addresses: IntArray = np.empty(0, np.int64)
        self._device = device
        self._per_segment = max(1, segment_bytes // slot_bytes)
        self._segments: list[Tensor] = []

    def take(self, num_slots: int) -> None:
        """Takes memory for so many slots, or for as many as there is memory for."""
        assert not self._segments, "slots are taken once"
        addresses: list[IntArray] = []
        for first in range(0, num_slots, self._per_segment):
            count = min(self._per_segment, num_slots - first)
            try:
                segment = torch.empty(count * self.slot_bytes, dtype=torch.uint8, device=self._device.kind)
            except torch.OutOfMemoryError:
                break
            self._segments.append(segment)
            addresses.append(segment.data_ptr() + np.arange(count, dtype=np.int64) * self.slot_bytes)
        self.slot_addresses = np.concatenate(addresses) if addresses else self.slot_addresses

    @property
    def num_slots(self) -> int:
        return len(self.slot_addresses)

    def addresses(self, offsets: IntArray) -> IntArray:
        """Where on the device the slots at `offsets` lie."""
        found: IntArray = self.slot_addresses[offsets // self.slot_bytes]
        return found

    def smaller(self) -> int:
        """How many slots would be left without the last segment."""
        return (len(self._segments) - 1) * self._per_segment

    def shrink(self) -> None:
        """Gives the last segment back; nothing may lie in it any more, and no submitted work use it."""
        self._segments.pop()
        self.slot_addresses = self.slot_addresses[: len(self._segments) * self._per_segment]

    def release(self) -> None:
        """Gives all of it back, as `shrink` a part."""
        self._segments.clear()
        self.slot_addresses = self.slot_addresses[:0]
