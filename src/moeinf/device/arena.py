"""Device memory for expert slots, in segments, so that a part can be given back."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from moeinf.device.device import Device
from moeinf.types import IntArray

SEGMENT_BYTES: Final = 512 << 20


class DeviceArena:
    """Slots of `slot_bytes` each. Their offsets are slot number * slot_bytes, as if the segments were one memory."""

    def __init__(self, device: Device, slot_bytes: int, num_slots: int) -> None:
        """Raises torch.OutOfMemoryError."""
        self.slot_bytes = slot_bytes
        self._per_segment = max(1, SEGMENT_BYTES // slot_bytes)
        self._segments: list[Tensor] = []
        addresses: list[IntArray] = []
        for first in range(0, num_slots, self._per_segment):
            count = min(self._per_segment, num_slots - first)
            segment = torch.empty(count * slot_bytes, dtype=torch.uint8, device=device.kind)
            self._segments.append(segment)
            addresses.append(segment.data_ptr() + np.arange(count, dtype=np.int64) * slot_bytes)
        self.slot_addresses: IntArray = np.concatenate(addresses)

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
