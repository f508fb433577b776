"""Converts a source shard into the files of the store. Reading, quantising, writing and flushing overlap."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from moeinf.errors import CheckpointError
from moeinf.hardware import machine
from moeinf.pull.checkpoint.conversion_plan import Conversion
from moeinf.pull.checkpoint.moves import AHEAD, DENSE, VISION, Move, Range
from moeinf.pull.coded.blocks import CodedRows, Losses, added
from moeinf.store.files import drop_cached, errors_named, open_regular, read_fully, sync_folder, write_fully
from moeinf.store.format import AHEAD_FILE, DENSE_FILE, VISION_FILE, shard_file

_NUM_BUFFERS = 4  # and one for each thread that quantises: memory does not grow with the size of a tensor
_MOST_BUFFERED_BYTES = 256 << 20  # where one read has to be larger (an expert whose rows lie among others): fewer
_FILES = {DENSE: DENSE_FILE, AHEAD: AHEAD_FILE, VISION: VISION_FILE}
_MAX_THREADS = 16  # quantise 4 GB/s of bf16, which is more than a pull can read and write


@dataclass(frozen=True, slots=True)
class Portions:
    """How much of a shard is read and flushed at once, by how many threads. No byte of the store depends on it."""

    segment_bytes: int = 8 << 20  # one read; beyond it a disk gains nothing
    flush_bytes: int = 256 << 20  # dirty bytes between two flushes: what a pull takes of the page cache, twice
    num_threads: int | None = None  # that quantise; None for one on each physical core


PORTIONS = Portions()


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring bytes of the source, which are read at once, transformed and scattered to their places."""

    offset_bytes: int
    num_bytes: int
    pieces: tuple[Move, ...]


def segments(moves: Sequence[Move], limit_bytes: int = PORTIONS.segment_bytes) -> Iterator[Segment]:
    """Cuts moves (in order of source_offset) between units into segments without gaps.

    A segment has at most limit_bytes, or one unit where that is larger. Moves of the same bytes (whole units, such as
    rows of gate and up that lie between each other) share a segment.
    """
    pieces: list[Move] = []
    start = end = 0
    for move in moves:
        if pieces and start <= move.source_offset and move.source_offset + move.num_bytes <= end:
            pieces.append(move)
            continue
        done = 0
        while done < move.num_bytes:
            here = move.source_offset + done
            if pieces and (here != end or limit_bytes - (end - start) < move.unit_bytes):
                yield Segment(start, end - start, tuple(pieces))
                pieces = []
            if not pieces:
                start = end = here
            room = max(limit_bytes - (end - start), move.unit_bytes)
            size = min(move.num_bytes - done, room - room % move.unit_bytes)
            pieces.append(move.part(done, size))
            end += size
            done += size
    if pieces:
        yield Segment(start, end - start, tuple(pieces))


def read_bytes(moves: Sequence[Move]) -> int:
    """Returns how many bytes of the shard `convert_shard` reads and tells `advance`."""
    return sum(segment.num_bytes for segment in segments(moves))


def create_files(folder: Path, conversion: Conversion) -> None:
    """Makes every weight file of the store at its full size, filled with zeros. Existing files keep their bytes."""
    heads = {DENSE_FILE: conversion.dense_head, AHEAD_FILE: conversion.ahead.head, VISION_FILE: conversion.vision.head}
    for name, size in conversion.file_sizes().items():
        path = folder / name
        with errors_named(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.ftruncate(fd, size)
                write_fully(fd, heads.get(name, b""), 0, path)
                os.fsync(fd)
            finally:
                os.close(fd)
    with errors_named(folder):
        sync_folder(folder)


def convert_shard(
    source: Path,
    moves: Sequence[Move],
    folder: Path,
    advance: Callable[[int], None],
    scales: Mapping[str, Path] = MappingProxyType({}),
    portions: Portions = PORTIONS,
) -> Losses:
    """Converts one source shard into the files of `folder`. On return the bytes are on the disk (fsync).

    Returns what was lost of weights that came in codes. scales: the shards in which the scales of its weights lie, by
    name. advance gets the source bytes done since its
    last call, from the calling thread. What is written does not depend on the portions. Raises CheckpointError
    for the source, DiskSpaceError or StoreError for the store; what was written is then incomplete.
    """
    threads = (portions.num_threads or num_threads()) if any(move.transform for move in moves) else 1
    cut = partial(segments, moves, portions.segment_bytes)
    buffer_bytes = max((segment.num_bytes for segment in cut()), default=0)
    num_buffers = min(_NUM_BUFFERS + threads, max(2, _MOST_BUFFERED_BYTES // max(buffer_bytes, 1)))
    losses: list[Losses] = []
    with (
        _Shard(source, scales) as shard,
        _Targets(folder, portions.flush_bytes) as targets,
        ThreadPoolExecutor(threads) as workers,
        ThreadPoolExecutor(1) as pool,
    ):
        pipe = _Pipe(num_buffers, buffer_bytes)
        reader = pool.submit(_read_segments, shard, cut(), pipe, workers)
        try:
            while (item := pipe.full.get()) is not None:
                segment, buffer, prepared = item
                made = prepared.result()
                targets.write(segment, [data for data, _ in made])
                losses += (loss for _, loss in made)
                pipe.free.put(buffer)
                advance(segment.num_bytes)
            reader.result()
            targets.finish()
        finally:
            pipe.stop.set()
            pipe.free.put(memoryview(b""))  # wakes a reader that waits for a buffer
    return added(losses)


def converted(
    source: Path, moves: Sequence[Move], scales: Mapping[str, Path], segment_bytes: int = PORTIONS.segment_bytes
) -> Iterator[tuple[Move, memoryview]]:
    """Yields parts of moves (in order of source_offset), one after the other, and what is to be written for each.

    What is yielded is overwritten by the next one. scales, and what is raised: as of `convert_shard`.
    """
    with _Shard(source, scales) as shard, errors_named(source, CheckpointError):
        buffer = memoryview(bytearray(max((each.num_bytes for each in segments(moves, segment_bytes)), default=0)))
        for segment in segments(moves, segment_bytes):
            others = shard.read(segment, buffer)
            made = _prepare(source, segment, buffer, others)
            yield from ((piece, data) for piece, (data, _) in zip(segment.pieces, made, strict=True))


def num_threads() -> int:
    """Returns how many threads quantise: as many as this process has physical cores."""
    return min(machine().cores, _MAX_THREADS)


Prepared = list[tuple[memoryview, Losses]]  # what is to be written for each piece of a segment, and lost by it


class _Pipe:
    """Buffers on their way from the reader, past the workers, to the writer and back."""

    def __init__(self, num_buffers: int, buffer_bytes: int) -> None:
        self.free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        # In the order of the source, so that the writer waits for the oldest; None: no more.
        self.full: queue.SimpleQueue[tuple[Segment, memoryview, Future[Prepared]] | None] = queue.SimpleQueue()
        self.stop = threading.Event()
        for _ in range(num_buffers):
            self.free.put(memoryview(bytearray(buffer_bytes)))


class _Shard:
    """An open source shard, and those with the scales of its weights."""

    def __init__(self, path: Path, scales: Mapping[str, Path]) -> None:
        self.path = path
        self._paths = scales
        self._fds: dict[Path, int] = {}
        self._open = ExitStack()

    def read(self, segment: Segment, buffer: memoryview) -> list[list[memoryview]]:
        """Fills the buffer; returns what else each piece needs."""
        fd = self._fd(self.path)
        read_fully(fd, buffer[: segment.num_bytes], segment.offset_bytes, self.path)
        drop_cached(fd, segment.offset_bytes, segment.num_bytes)
        found: dict[Range, memoryview] = {}
        for place in (place for piece in segment.pieces for place in piece.others):
            if place not in found:
                found[place] = self._read_other(place)
        return [[found[place] for place in piece.others] for piece in segment.pieces]

    def _read_other(self, place: Range) -> memoryview:
        path = self._paths[place.shard]
        data = memoryview(bytearray(place.num_bytes))
        read_fully(self._fd(path), data, place.offset, path)
        return data

    def _fd(self, path: Path) -> int:
        if path not in self._fds:
            with errors_named(path, CheckpointError):
                self._fds[path] = fd = open_regular(path)
            self._open.callback(os.close, fd)
        return self._fds[path]

    def __enter__(self) -> _Shard:
        self._fd(self.path)
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()


def _prepare(source: Path, segment: Segment, buffer: memoryview, others: Sequence[Sequence[memoryview]]) -> Prepared:
    prepared: Prepared = []
    for piece, beside in zip(segment.pieces, others, strict=True):
        start = piece.source_offset - segment.offset_bytes
        data = buffer[start : start + piece.num_bytes]
        try:
            if isinstance(piece.transform, CodedRows):
                prepared.append(piece.transform.measured(data, beside))
            else:
                prepared.append((piece.transform.apply(data, beside) if piece.transform else data, {}))
        except ValueError as error:
            name = piece.transform.tensor if piece.transform else ""
            raise CheckpointError(f"{source}: tensor {name!r}: {error}") from error
    return prepared


def _read_segments(shard: _Shard, cut: Iterator[Segment], pipe: _Pipe, workers: ThreadPoolExecutor) -> None:
    try:
        with errors_named(shard.path, CheckpointError):
            for segment in cut:
                buffer = pipe.free.get()
                if pipe.stop.is_set():
                    return
                others = shard.read(segment, buffer)
                pipe.full.put((segment, buffer, workers.submit(_prepare, shard.path, segment, buffer, others)))
    finally:
        pipe.full.put(None)


class _Targets:
    """Open files of the store under conversion, flushed in the background so that few dirty pages pile up."""

    def __init__(self, folder: Path, flush_bytes: int) -> None:
        self._folder = folder
        self._flush_bytes = flush_bytes
        self._fds: dict[int, tuple[int, Path]] = {}
        self._dirty: set[int] = set()
        self._dirty_bytes = 0
        self._flusher = ThreadPoolExecutor(1)
        self._flush: Future[None] | None = None

    def write(self, segment: Segment, prepared: Sequence[memoryview]) -> None:
        for piece, data in zip(segment.pieces, prepared, strict=True):
            fd, path = self._open(piece.target)
            with errors_named(path):
                write_fully(fd, data, piece.target_offset, path)
            self._dirty.add(piece.target)
            self._dirty_bytes += len(data)
        if self._dirty_bytes >= self._flush_bytes:
            self._start_flush(self._dirty)
            self._dirty, self._dirty_bytes = set(), 0

    def finish(self) -> None:
        """All that was written is on the disk when this returns."""
        self._start_flush(set(self._fds))
        self._await_flush()

    def _open(self, target: int) -> tuple[int, Path]:
        if target not in self._fds:
            path = self._folder / (_FILES.get(target) or shard_file(target))
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
