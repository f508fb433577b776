"""Files of experts whose bytes lie in one file, or in parts of two; and how such a file is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import crc32c
from moeinf.store.files import drop_cached, open_regular, read_fully, sync_folder, write_fully
from moeinf.types import SumRun

_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Rest:
    """Of every `stride` bytes of a file, those from `first` on lie in another one, at the same places."""

    path: Path
    first: int
    stride: int


class OpenParts:
    """A file to read, from wherever its bytes lie."""

    def __init__(self, path: Path, rest: Rest | None) -> None:
        self._path, self._rest = path, rest
        self._fd = open_regular(path)
        self._rest_fd = -1
        if rest is not None:
            try:
                self._rest_fd = open_regular(rest.path)
            except BaseException:
                os.close(self._fd)
                raise

    def read(self, buffer: memoryview, offset: int) -> None:
        """Fills the buffer. Raises OSError."""
        done = 0
        while done < len(buffer):
            end, fd, path = len(buffer), self._fd, self._path
            if self._rest is not None:
                place = (offset + done) % self._rest.stride
                beyond = place >= self._rest.first
                end = min(end, done + (self._rest.stride if beyond else self._rest.first) - place)
                fd, path = (self._rest_fd, self._rest.path) if beyond else (fd, path)
            read_fully(fd, buffer[done:end], offset + done, path)
            done = end

    def drop_cached(self, offset: int, num_bytes: int) -> None:
        """Tells the kernel that these bytes are not needed again."""
        for fd in (self._fd, self._rest_fd):
            if fd >= 0:
                drop_cached(fd, offset, num_bytes)

    def close(self) -> None:
        for fd in (self._fd, self._rest_fd):
            if fd >= 0:
                os.close(fd)


@contextmanager
def opened(path: Path, rest: Rest | None = None) -> Iterator[OpenParts]:
    """Raises OSError."""
    file = OpenParts(path, rest)
    try:
        yield file
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class Kept:
    """Of every `stride` bytes those from `start` to `end`."""

    start: int
    end: int
    stride: int

    def of(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges that are kept of a range."""
        for block in range(start // self.stride * self.stride, end, self.stride):
            low, high = max(start, block + self.start), min(end, block + self.end)
            if low < high:
                yield low, high


def copy_file(
    source: OpenParts,
    target: Path,
    num_bytes: int,
    sums: Sequence[SumRun],
    kept: Kept | None,
    progress: Callable[[int], None],
) -> str:
    """Writes a file, or what is kept of it; it has its name once all of it is on the disk.

    What is read is compared with its sums. Returns what does not match them, and then writes no file; else "".
    Raises OSError.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(fd, num_bytes)
        buffer = memoryview(bytearray(_PIECE_BYTES))
        for start, end, wanted in _units(num_bytes, sums):
            found = 0
            for at in range(start, end, _PIECE_BYTES):
                piece = buffer[: min(_PIECE_BYTES, end - at)]
                source.read(piece, at)
                found = crc32c(piece, found)
                for low, high in [(at, at + len(piece))] if kept is None else kept.of(at, at + len(piece)):
                    write_fully(fd, piece[low - at : high - at], low, temporary)
                progress(len(piece))
            source.drop_cached(start, end - start)
            if wanted is not None and found != wanted:
                return f"{end - start} bytes at {start} do not match their checksum"
        os.fsync(fd)
        drop_cached(fd)
        os.replace(temporary, target)
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):  # as it is where all went well
            os.unlink(temporary)
    sync_folder(target.parent)
    return ""


def damaged_units(
    source: OpenParts, num_bytes: int, sums: Sequence[SumRun], progress: Callable[[int], None]
) -> Iterator[tuple[int, int]]:
    """Yields start and end of each range of a file that does not match its sum. Bytes without one are not read."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    for start, end, wanted in _units(num_bytes, sums):
        if wanted is not None and _sum_of(source, start, end, buffer, progress) != wanted:
            yield start, end


def _sum_of(source: OpenParts, start: int, end: int, buffer: memoryview, progress: Callable[[int], None]) -> int:
    source.drop_cached(start, end - start)
    found = 0
    for at in range(start, end, _PIECE_BYTES):
        piece = buffer[: min(_PIECE_BYTES, end - at)]
        source.read(piece, at)
        found = crc32c(piece, found)
        progress(len(piece))
    source.drop_cached(start, end - start)
    return found


def _units(num_bytes: int, sums: Sequence[SumRun]) -> Iterator[tuple[int, int, int | None]]:
    """All of a file in order: start, end and sum of each range that has one, and of those between."""
    end = 0
    for run in sorted(sums, key=lambda each: each.start):
        if run.start > end:
            yield end, run.start, None
        for number, each in enumerate(np.asarray(run.sums).tolist()):
            start = run.start + number * run.unit_bytes
            yield start, min(start + run.unit_bytes, run.start + run.num_bytes), each
        end = run.start + run.num_bytes
    if end < num_bytes:
        yield end, num_bytes, None
