"""The form of what a worker replies: how it went, what it has counted so far, and rows."""

from __future__ import annotations

import struct
from dataclasses import fields
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from moeinf.distributed.link import MalformedError, printable
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.io.reader_protocol import ReadFacts
from moeinf.types import ByteArray, Float32Array, FloatArray

REPLY_HEAD_BYTES: Final = 128
_VERDICT: Final = struct.Struct("=2i")
_STATS: Final = tuple(field.name for field in fields(CacheStats))
_OF_STATS: Final = attrgetter(*_STATS)
_COUNTS: Final = struct.Struct(f"={len(_STATS) + 2}d")
_COUNTS_AT: Final = _VERDICT.size
STALL: Final = _STATS.index("stall_s")  # its place among the numbers of a reply
_MOST_COUNTED: Final = 2.0**62


def reply_bytes(num_rows: int, width: int) -> int:
    return REPLY_HEAD_BYTES + 4 * num_rows * width


class Counts(NamedTuple):
    """What a rank has counted: its cache, and what its reader has read, in so many seconds."""

    cache: CacheStats
    read_bytes: int
    busy_s: float


def numbers_of(stats: CacheStats, reader: ReadFacts) -> tuple[float, ...]:
    """What a rank has counted so far, as a reply has it: a number for each thing, which can be added up."""
    return (*_OF_STATS(stats), reader.bytes_read(), reader.busy_seconds())


def counts_of(numbers: FloatArray) -> Counts:
    """What `numbers_of` such numbers are, or sums and differences of them."""
    *of_cache, read_bytes, busy_s = numbers.tolist()
    stats = {name: value if name == "stall_s" else int(value) for name, value in zip(_STATS, of_cache, strict=True)}
    return Counts(CacheStats(**stats), int(read_bytes), busy_s)


def no_numbers() -> FloatArray:
    """Those of a rank that has counted nothing."""
    return np.zeros(len(_STATS) + 2)


class ReplyForm:
    """A reply: whether it went well, what the rank has counted so far, and the rows, or why it did not."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._memory: ByteArray = np.empty(0, np.uint8)

    def frame(self, num_rows: int) -> ByteArray:
        """A frame for so many rows, good until the next call."""
        num_bytes = reply_bytes(num_rows, self._width)
        if len(self._memory) < num_bytes:
            self._memory = np.zeros(num_bytes, np.uint8)
        return self._memory[:num_bytes]

    def rows(self, frame: ByteArray) -> Float32Array:
        rows: Float32Array = frame[REPLY_HEAD_BYTES:].view(np.float32).reshape(-1, self._width)
        return rows

    def say(self, frame: ByteArray, numbers: tuple[float, ...], fault: str = "") -> None:
        """Writes how it went, and `numbers_of` what was counted; a fault overwrites the rows, as far as it fits."""
        text = fault.encode()[: len(frame) - REPLY_HEAD_BYTES]
        _VERDICT.pack_into(frame.data, 0, 1 if fault else 0, len(text))
        _COUNTS.pack_into(frame.data, _COUNTS_AT, *numbers)
        if text:
            frame[REPLY_HEAD_BYTES : REPLY_HEAD_BYTES + len(text)] = np.frombuffer(text, np.uint8)

    def fault(self, frame: ByteArray) -> str:
        """ "" where it went well: then the rows are finite. Raises MalformedError."""
        failed, length = _VERDICT.unpack_from(frame.data)
        if failed not in (0, 1) or not 0 <= length <= len(frame) - REPLY_HEAD_BYTES:
            raise MalformedError("it sent a reply of which cannot be told whether it went well")
        if not failed:
            if not np.isfinite(self.rows(frame)).all():
                raise MalformedError("it sent rows that are not finite")
            return ""
        text = frame[REPLY_HEAD_BYTES : REPLY_HEAD_BYTES + length].tobytes()
        return printable(text) or "it failed"

    def numbers(self, frame: ByteArray) -> FloatArray:
        """Those that `say` was given. Raises MalformedError."""
        numbers = np.array(_COUNTS.unpack_from(frame.data, _COUNTS_AT))
        if not (numbers.min() >= 0 and numbers.max() <= _MOST_COUNTED):  # nor NaN
            raise MalformedError("it sent counts that cannot be meant")
        return numbers
