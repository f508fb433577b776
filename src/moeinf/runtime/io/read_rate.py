"""How fast files are read: many reads at random places, several in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import Arena
from moeinf.config import RuntimeConfig
from moeinf.runtime.io.reader import open_reader
from moeinf.runtime.io.reader_protocol import NO_OTHERS, OtherDisks
from moeinf.types import BLOCK_ALIGN_BYTES

_IN_FLIGHT: Final = 16
_LIMIT_S: Final = 2.0
_MOST_BYTES: Final = 4 << 30


def read_rate(
    paths: Sequence[Path],
    sizes: Sequence[int],
    span_bytes: int,
    config: RuntimeConfig,
    *,
    in_flight: int = _IN_FLIGHT,
    room_bytes: int = 0,
    limit_s: float = _LIMIT_S,
    others: OtherDisks = NO_OTHERS,
) -> float:
    """Bytes a second of reads of so many bytes, or of the smallest file, at random places, none of them twice.

    They go by turns to memory that was used before, as slots are: room_bytes of it, or as much as is in flight.
    """
    span = min(span_bytes, min(sizes) // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES)
    places = [(file, at) for file, size in enumerate(sizes) for at in range(0, size - span + 1, span)]
    order = np.random.default_rng(0).permutation(len(places))[: _MOST_BYTES // span]
    arena = Arena(max(in_flight, room_bytes // span) * span)
    arena.array().fill(1)
    reader = open_reader(paths, sizes, arena, config, others=others)
    try:
        started, done, next_read = time.perf_counter(), 0, 0
        slots: dict[int, int] = {}
        free = deque(range(arena.num_bytes // span))
        while (next_read < len(order) and time.perf_counter() - started < limit_s) or slots:
            while len(slots) < in_flight and next_read < len(order) and time.perf_counter() - started < limit_s:
                file, at = places[order[next_read]]
                slots[next_read] = free.popleft()
                destination = np.array([slots[next_read] * span])
                reader.submit(
                    np.array([next_read]), np.array([file]), np.array([at]), destination, span, np.array([np.inf])
                )
                next_read += 1
            for key in reader.wait_any(np.array(list(slots))).tolist():
                free.append(slots.pop(key))
                done += span
        return done / (time.perf_counter() - started)
    finally:
        reader.close()
