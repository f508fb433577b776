"""How many answers are made side by side, and what their sequences take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint, sequence_bytes
from moeinf.hardware import Machine
from moeinf.types import ModelInfo

MOST: Final = 4  # unasked
SHARE: Final = 8  # of the memory at hand, what further sequences take unasked at most: an eighth


def sessions(config: RuntimeConfig, info: ModelInfo, context: int, machine: Machine, *, on_gpu: bool) -> int:
    """As asked; else as many as memory has room for, where several go through the layers together: on a CPU alone.

    context: tokens of each sequence.
    """
    if config.parallel:
        return config.parallel
    if on_gpu or config.compute.workers or config.recording.trace:
        return 1
    room = config.memory.ram.of(machine.available_bytes) if config.memory.ram else machine.available_bytes
    further = room // SHARE // max(1, sequence_bytes(info, context))
    return max(1, min(MOST, 1 + further))


def with_sessions(footprint: Footprint, count: int) -> Footprint:
    """The sizes of a model that keeps so many sequences."""
    info = footprint.info
    info = replace(info, kv_bytes_per_token=count * info.kv_bytes_per_token, state_bytes=count * info.state_bytes)
    return replace(footprint, info=info, apart_bytes=count * footprint.apart_bytes)
