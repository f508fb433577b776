"""What computes experts on a device, and the slots from which it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeinf.gpu.arena import DeviceArena
from moeinf.gpu.device import Device
from moeinf.gpu.matrix import ExpertParts
from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.gpu.copies import Copies
from moeinf.runtime.gpu.host_slots import HostSlots


@dataclass(frozen=True, slots=True)
class DeviceCompute:
    """A device, its kernels, the recording of a decode step, and the parts of an expert's block in each layer."""

    device: Device
    ops: Ops
    program: DecodeProgram
    parts: Sequence[ExpertParts]


@dataclass(frozen=True, slots=True)
class DeviceSlots:
    """The tier of a device, the memory of its slots, the copies into it, and the host's slots that these come from."""

    tier: ExpertTier
    arena: DeviceArena
    copies: Copies
    host: HostSlots
