"""Reads ranges of a file piece by piece, through a small buffer, for memory that no reader reaches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import Arena, ReadFailure
from moeinf.config import RuntimeConfig
from moeinf.runtime.io.reader import CHUNK_BYTES, open_reader, read_tail, unreadable
from moeinf.runtime.io.reader_protocol import OnWait
from moeinf.types import BLOCK_ALIGN_BYTES, ByteArray, IntArray

BUFFER_BYTES: Final = 64 << 20  # one half is read into while the other is used


class FilePieces:
    """A file of which nothing but a buffer is ever in memory. Used from one thread; close it."""

    def __init__(
        self,
        path: Path,
        num_bytes: int,
        config: RuntimeConfig,
        on_wait: OnWait | None = None,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """num_bytes: of the file; chunk_bytes: of one read.

        Raises StoreError where the file is missing or has another size.
        """
        self._half_bytes, self._chunk_bytes = buffer_bytes // 2, chunk_bytes
        self._whole = num_bytes // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
        arena = Arena(2 * self._half_bytes)
        self._buffer: ByteArray | None = arena.array()
        self._reader = open_reader([path], [num_bytes], arena, config, on_wait=on_wait)
        self._next_key = 0
        try:
            self._tail = read_tail(path, self._whole, num_bytes)
        except BaseException:
            self.close()
            raise

    def read(self, start: int, num_bytes: int, unit_bytes: int = 1) -> Iterator[ByteArray]:
        """Yields the bytes from `start` on, in order, in pieces of whole units. All have to be taken.

        A piece is overwritten when the next is asked for, or another range. Raises StoreError.
        """
        step = (self._half_bytes - BLOCK_ALIGN_BYTES) // unit_bytes * unit_bytes  # a piece begins anywhere in a block
        borders = [*range(start, start + num_bytes, step), start + num_bytes]
        queued = None
        for number, (first, last) in enumerate(pairwise(borders)):
            behind = self._submit(first, last, number % 2)
            if queued is not None:
                yield self._arrived(*queued)
            queued = behind
        if queued is not None:
            yield self._arrived(*queued)

    def close(self) -> None:
        """Waits for reads under way, and gives the buffer back."""
        self._reader.close()
        self._buffer = None

    def _submit(self, first: int, last: int, half: int) -> tuple[IntArray, ByteArray]:
        """Queues the reads of a range into a half of the buffer: their keys, and where its bytes will be."""
        assert self._buffer is not None, "the file is closed"
        block = first // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
        end = min(-(-last // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES, max(block, self._whole))  # of what is in blocks
        into = self._buffer[half * self._half_bytes : (half + 1) * self._half_bytes]
        before = self._next_key
        rest = (end - block) % self._chunk_bytes
        self._queue(np.arange(block, end - rest, self._chunk_bytes), self._chunk_bytes, half * self._half_bytes - block)
        self._queue(np.arange(end - rest, end, max(rest, 1)), rest, half * self._half_bytes - block)
        if last > self._whole:  # O_DIRECT reads whole blocks only
            into[end - block : end - block + len(self._tail)] = self._tail
        return np.arange(before, self._next_key), into[first - block : last - block]

    def _queue(self, offsets: IntArray, size: int, shift: int) -> None:
        if len(offsets):
            keys = np.arange(self._next_key, self._next_key + len(offsets))
            self._next_key += len(offsets)
            self._reader.submit(keys, np.zeros_like(keys), offsets, offsets + shift, size, np.full(len(keys), np.inf))

    def _arrived(self, keys: IntArray, piece: ByteArray) -> ByteArray:
        try:
            while len(keys):
                keys = np.setdiff1d(keys, self._reader.wait_any(keys))
        except ReadFailure as failure:
            raise unreadable(failure) from failure
        return piece
