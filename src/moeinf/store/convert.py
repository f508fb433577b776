"""Copies the bytes of a source shard to their places in the store; reading, writing and flushing overlap."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.store.checkpoint import DENSE, Conversion, Copy
from moeinf.store.files import drop_cached, errors_named, open_regular, read_fully, sync_folder, write_fully
from moeinf.store.format import DENSE_FILE, shard_file

_SEGMENT_BYTES = 8 << 20  # one read; beyond it a disk gains nothing
_NUM_BUFFERS = 4  # so memory is 32 MiB, whatever the size of a tensor
_FLUSH_BYTES = 256 << 20  # dirty bytes between two flushes: what a pull takes of the page cache, twice


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring bytes of the source, read at once and scattered."""

    offset_bytes: int
    num_bytes: int
    pieces: tuple[Copy, ...]


def segments(copies: Sequence[Copy], limit_bytes: int = _SEGMENT_BYTES) -> Iterator[Segment]:
    """Cuts copies (in order of source_offset) into segments without gaps of at most limit_bytes."""
    pieces: list[Copy] = []
    start = end = 0
    for copy in copies:
        done = 0
        while done < copy.num_bytes:
            here = copy.source_offset + done
            if pieces and (here != end or end - start >= limit_bytes):
                yield Segment(start, end - start, tuple(pieces))
                pieces = []
            if not pieces:
                start = end = here
            size = min(copy.num_bytes - done, limit_bytes - (end - start))
            pieces.append(Copy(here, size, copy.target, copy.target_offset + done))
            end += size
            done += size
    if pieces:
        yield Segment(start, end - start, tuple(pieces))


def create_files(folder: Path, conversion: Conversion) -> None:
    """Makes every weight file of the store at its full size, zero-filled; files that are there keep their bytes."""
    for name, size in conversion.file_sizes().items():
        path = folder / name
        with errors_named(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, size)
                if name == DENSE_FILE:
                    write_fully(fd, conversion.dense_head, 0, path)
                os.fsync(fd)
            finally:
                os.close(fd)
    with errors_named(folder):
        sync_folder(folder)


def convert_shard(source: Path, copies: Sequence[Copy], folder: Path, advance: Callable[[int], None]) -> None:
    """Copies one source shard into the files of `folder`; on return the bytes are on the disk (fsync).

    advance gets the bytes written since its last call, from the calling thread. Raises CheckpointError for the source,
    DiskSpaceError or StoreError for the store; what was written is then incomplete.
    """
    with errors_named(source, CheckpointError):
        fd = open_regular(source)
    try:
        with _Targets(folder) as targets, ThreadPoolExecutor(1) as pool:
            pipe = _Pipe()
            reader = pool.submit(_read_segments, source, fd, copies, pipe)
            try:
                while (item := pipe.full.get()) is not None:
                    segment, buffer = item
                    targets.write(segment, buffer)
                    pipe.free.put(buffer)
                    advance(segment.num_bytes)
                reader.result()
                targets.finish()
            finally:
                pipe.stop.set()
                pipe.free.put(memoryview(b""))  # wakes a reader that waits for a buffer
    finally:
        os.close(fd)


class _Pipe:
    """Buffers on their way from the reader to the writer and back."""

    def __init__(self) -> None:
        self.free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self.full: queue.SimpleQueue[tuple[Segment, memoryview] | None] = queue.SimpleQueue()  # None: no more
        self.stop = threading.Event()
        for _ in range(_NUM_BUFFERS):
            self.free.put(memoryview(bytearray(_SEGMENT_BYTES)))


def _read_segments(source: Path, fd: int, copies: Sequence[Copy], pipe: _Pipe) -> None:
    try:
        with errors_named(source, CheckpointError):
            for segment in segments(copies):
                buffer = pipe.free.get()
                if pipe.stop.is_set():
                    return
                read_fully(fd, buffer[: segment.num_bytes], segment.offset_bytes, source)
                drop_cached(fd, segment.offset_bytes, segment.num_bytes)
                pipe.full.put((segment, buffer))
    finally:
        pipe.full.put(None)


class _Targets:
    """Open files of the store under conversion, flushed in the background so that few dirty pages pile up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fds: dict[int, tuple[int, Path]] = {}
        self._dirty: set[int] = set()
        self._dirty_bytes = 0
        self._flusher = ThreadPoolExecutor(1)
        self._flush: Future[None] | None = None

    def write(self, segment: Segment, buffer: memoryview) -> None:
        for piece in segment.pieces:
            start = piece.source_offset - segment.offset_bytes
            fd, path = self._open(piece.target)
            with errors_named(path):
                write_fully(fd, buffer[start : start + piece.num_bytes], piece.target_offset, path)
            self._dirty.add(piece.target)
        self._dirty_bytes += segment.num_bytes
        if self._dirty_bytes >= _FLUSH_BYTES:
            self._start_flush(self._dirty)
            self._dirty, self._dirty_bytes = set(), 0

    def finish(self) -> None:
        """All that was written is on the disk when this returns."""
        self._start_flush(set(self._fds))
        self._await_flush()

    def _open(self, target: int) -> tuple[int, Path]:
        if target not in self._fds:
            path = self._folder / (DENSE_FILE if target == DENSE else shard_file(target))
            with errors_named(path):
                self._fds[target] = os.open(path, os.O_WRONLY | os.O_CLOEXEC), path
        return self._fds[target]

    def _start_flush(self, targets: set[int]) -> None:
        self._await_flush()
        self._flush = self._flusher.submit(_flush_files, [self._fds[target] for target in targets])

    def _await_flush(self) -> None:
        if self._flush is not None:
            self._flush.result()

    def __enter__(self) -> _Targets:
        return self

    def __exit__(self, *exception: object) -> None:
        self._flusher.shutdown(wait=True)
        for fd, _ in self._fds.values():
            os.close(fd)


def _flush_files(files: Sequence[tuple[int, Path]]) -> None:
    for fd, path in files:
        with errors_named(path):
            os.fsync(fd)
            drop_cached(fd)
