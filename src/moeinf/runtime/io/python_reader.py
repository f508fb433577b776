"""The reference implementation of the native reader: one thread, a sorted list, buffered preadv."""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from moeinf._native import Arena, ReadFailure, crc32c
from moeinf.runtime.io.reader_protocol import OnWait, ReadDone
from moeinf.types import BLOCK_ALIGN_BYTES, FloatArray, IntArray, SumArray

SIGNAL_PERIOD_S: Final = 0.1  # between two calls of on_wait
CLOSE_PATIENCE_S: Final = 1.0  # for a read under way
FORGOTTEN_S: Final = 1.0  # within which the thread of a reader that was forgotten ends


@dataclass(slots=True)
class _Expected:
    """The sum of a block, and whether there is still reason to compare it.

    ranges: where it is read range by range, how many bytes each has and their sum, as it was read last, by its place.
    """

    offset: int
    num_bytes: int
    sum: int
    always: bool
    sound: bool = False
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)

    def is_damaged(self, place: int, read: memoryview) -> bool:
        """Takes bytes that were read from this place of the block on: whether all of it is known now, and damaged."""
        self.ranges[place] = len(read), crc32c(read)
        end = total = 0
        for start, (num_bytes, found) in sorted(self.ranges.items()):
            if start != end:
                return False
            zeros = np.zeros(num_bytes, np.uint8)
            end, total = end + num_bytes, crc32c(zeros, total) ^ crc32c(zeros) ^ found
        if end != self.num_bytes:
            return False
        damaged = total != self.sum
        self.sound = not damaged and not self.always
        if damaged:
            self.ranges.clear()  # nobody can tell which of them it was
        return damaged


@dataclass(slots=True)
class _Piece:
    """A range of a file, and where it comes to in the arena. Both begin on block borders."""

    file: int
    offset: int
    destination: int
    num_bytes: int
    expected: _Expected | None = None
    skipped: int = 0  # bytes before those that were asked for
    wanted: int = 0  # of these


@dataclass(slots=True)
class _Request:
    key: int
    pieces: list[_Piece]
    priority: float
    order: int  # ties: first come, first served
    done: int = 0  # pieces
    num_bytes_read: int = 0  # of the piece that follows them
    issued: bool = False
    landed: int | None = None  # once it is complete: how many had landed before it
    failure: ReadFailure | None = None


class PureReader:
    """Implements Reader (reader_protocol.py) without native threads: the contract of NativeReader, only slower.

    One worker thread reads one segment at a time and takes the next from the request that sorts first. It outlives what
    reading raises, which is the failure of that read, and ends where the reader is forgotten without `close`.
    """

    backend = "pure"
    notice = ""

    def __init__(
        self,
        paths: Sequence[str],
        sizes: Sequence[int],
        arena: Arena,
        *,
        segment_bytes: int = 1 << 20,
        on_wait: OnWait | None = None,
    ) -> None:
        self._memory = arena.array().data  # keeps the arena alive
        self._segment_bytes = segment_bytes
        self._paths = list(paths)
        self._sizes = list(sizes)
        self._descriptors: list[int] = []
        self._requests: dict[int, _Request] = {}
        self._expected: dict[tuple[int, int], _Expected] = {}  # by file and offset
        self._starts: list[tuple[int, int]] = []  # the keys of that, ascending
        self._next_order = self._num_landed = 0
        self._bytes_read = 0
        self._busy_s = 0.0
        self._on_wait = on_wait
        self._closed = False
        self._changed = threading.Condition()  # guards all of the above
        try:
            for path, num_bytes in zip(self._paths, self._sizes, strict=True):
                self._descriptors.append(_open(path, num_bytes))
        except BaseException:
            self._close_files()
            raise
        self._thread = threading.Thread(
            target=_work, args=(weakref.ref(self), self._changed), name="moeinf-pure-reader", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self._close_files()
            raise OSError(errno.EAGAIN, str(error)) from error

    def expect(
        self, files: IntArray, offsets: IntArray, num_bytes: int, sums: SumArray, *, always: bool = False
    ) -> None:
        with self._changed:
            for file, offset, wanted in zip(files.tolist(), offsets.tolist(), sums.tolist(), strict=True):
                if not 0 <= file < len(self._paths) or not 0 <= offset <= self._sizes[file] - num_bytes:
                    raise ValueError(f"{num_bytes} bytes at {offset} of file {file} are not inside it")
                self._expected[file, offset] = _Expected(offset, num_bytes, wanted, always)
            self._starts = sorted(self._expected)

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        with self._changed:
            self._require_open()
            columns = [column.tolist() for column in (keys, files, offsets, destinations)]
            pieces = []
            for key, file, offset, destination in zip(*columns, strict=True):
                self._require_file(key, file)
                _require_range("file", offset, num_bytes, self._sizes[file], key)
                _require_range("arena", destination, num_bytes, len(self._memory), key)
                expected = self._sum(file, offset, num_bytes)
                pieces.append([_Piece(file, offset, destination, num_bytes, expected, 0, num_bytes)])
            self._queue(columns[0], pieces, priorities.tolist())

    def submit_pieces(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: IntArray,
        priorities: FloatArray,
    ) -> None:
        if not files.shape == offsets.shape == destinations.shape == num_bytes.shape == (len(keys), files.shape[1]):
            raise ValueError("pieces are [keys, pieces of each]")
        with self._changed:
            self._require_open()
            columns = [column.tolist() for column in (files, offsets, destinations, num_bytes)]
            pieces = []
            for key, *rows in zip(keys.tolist(), *columns, strict=True):
                ranges = list(zip(*rows, strict=True))
                pieces.append([self._piece(key, *each) for i, each in enumerate(ranges) if i == 0 or each[3] != 0])
            self._queue(keys.tolist(), pieces, priorities.tolist())

    def _piece(self, key: int, file: int, offset: int, destination: int, num_bytes: int) -> _Piece:
        """The blocks that a range lies in, cut at the end of the file."""
        self._require_file(key, file)
        size = self._sizes[file]
        if offset < 0 or num_bytes <= 0 or offset + num_bytes > size:
            raise ValueError(f"key {key}: {num_bytes} bytes at {offset} are not inside the file of {size} bytes")
        start = offset // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
        end = -(-(offset + num_bytes) // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        _require_range("arena", destination, end - start, len(self._memory), key)
        expected = self._sum(file, offset, num_bytes)
        return _Piece(file, start, destination, min(end, size) - start, expected, offset - start, num_bytes)

    def _sum(self, file: int, offset: int, num_bytes: int) -> _Expected | None:
        """What the block has to have that a range lies in."""
        before = bisect_right(self._starts, (file, offset))
        if not before or self._starts[before - 1][0] != file:
            return None
        known = self._expected[self._starts[before - 1]]
        return known if offset + num_bytes <= known.offset + known.num_bytes and not known.sound else None

    def _queue(self, keys: list[int], pieces: list[list[_Piece]], priorities: list[float]) -> None:
        new: dict[int, _Request] = {}
        for key, of_key, priority in zip(keys, pieces, priorities, strict=True):
            if key in self._requests or key in new:
                raise ValueError(f"key {key} is submitted already")
            _require_priority(priority)
            new[key] = _Request(key, of_key, priority, self._next_order + len(new))
        self._next_order += len(new)
        self._changed.notify_all()
        self._requests.update(new)  # last, and at once: an interrupt finds all of them queued, or none

    def _require_file(self, key: int, file: int) -> None:
        if not 0 <= file < len(self._paths):
            raise ValueError(f"key {key}: there is no file {file}")

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        with self._changed:
            self._require_open()
            wanted = list(zip(keys.tolist(), priorities.tolist(), strict=True))
            for _, priority in wanted:
                _require_priority(priority)
            for key, priority in wanted:
                request = self._requests.get(key)
                if request is None or request.landed is not None or request.priority == priority:
                    continue
                request.priority = priority
                if priority == math.inf:  # demand is served in the order in which it became demand
                    request.order = self._next_order
                    self._next_order += 1

    def cancel(self, keys: IntArray) -> IntArray:
        with self._changed:
            self._require_open()
            known = [key for key in keys.tolist() if key in self._requests and not self._requests[key].issued]
            cancelled = list(dict.fromkeys(known))
            for key in cancelled:
                del self._requests[key]
            self._changed.notify_all()
            return np.array(cancelled, dtype=np.int64)

    def known(self, keys: IntArray) -> IntArray:
        with self._changed:
            self._require_open()
            return np.array([key for key in keys.tolist() if key in self._requests], dtype=np.int64)

    def wait_any(self, keys: IntArray) -> IntArray:
        wanted = set(keys.tolist())
        if not wanted:
            raise ValueError("wait_any needs at least one key")
        started = time.monotonic()
        with self._changed:
            while True:
                self._require_open()
                if unknown := wanted - self._requests.keys():
                    raise ValueError(f"key {min(unknown)} is not being read")
                landed = [request for request in self._landed() if request.key in wanted]
                for request in landed:
                    if request.failure is not None:
                        self._forget([request])
                        raise request.failure
                if landed:
                    return self._forget(landed)
                self._changed.wait(SIGNAL_PERIOD_S)
                if self._on_wait is not None and (waited_s := time.monotonic() - started) >= SIGNAL_PERIOD_S:
                    self._on_wait(waited_s, self._paths[self._requests[min(wanted)].pieces[0].file])

    def poll(self) -> ReadDone:
        with self._changed:
            self._require_open()
            failed = self._forget([request for request in self._landed() if request.failure is not None])
            return ReadDone(self._forget(self._landed()), failed)

    def bytes_read(self) -> int:
        with self._changed:
            return self._bytes_read

    def busy_seconds(self) -> float:
        with self._changed:
            return self._busy_s

    def close(self) -> bool:
        with self._changed:
            self._closed = True
            self._on_wait = None
            self._changed.notify_all()
        self._thread.join(CLOSE_PATIENCE_S)
        if self._thread.is_alive():
            return False  # its thread, and with it the memory, stays until the disk answers
        self._close_files()
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the reader is closed")

    def _landed(self) -> list[_Request]:
        """Those that are complete and not collected, in the order in which they landed."""
        landed = ((each.landed, each) for each in self._requests.values() if each.landed is not None)
        return [request for _, request in sorted(landed, key=lambda pair: pair[0])]

    def _forget(self, landed: list[_Request]) -> IntArray:
        for request in landed:
            del self._requests[request.key]
        return np.array([request.key for request in landed], dtype=np.int64)

    def _close_files(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _advance(self, request: _Request) -> None:
        """Reads the next segment of a request."""
        started = time.perf_counter()
        piece, num_bytes = request.pieces[request.done], 0
        failure: ReadFailure | None = None
        try:
            num_bytes, failure = self._read_segment(request, piece)
            ended = failure is None and request.num_bytes_read + num_bytes == piece.num_bytes
            if ended and request.done + 1 == len(request.pieces):
                failure = self._damage(request)
        except BaseException as error:  # whoever waits for the read is told, whatever it was
            path, code = self._paths[piece.file], errno.ENOMEM if isinstance(error, MemoryError) else errno.EIO
            failure = _read_failure(f"read in {path} failed: {error!r}", path, request.key, code)
        with self._changed:
            self._busy_s += time.perf_counter() - started
            self._bytes_read += num_bytes
            request.num_bytes_read += num_bytes
            if request.num_bytes_read == piece.num_bytes:
                request.done, request.num_bytes_read = request.done + 1, 0
            request.failure = failure
            if failure is not None or request.done == len(request.pieces):
                request.landed, self._num_landed = self._num_landed, self._num_landed + 1
                self._changed.notify_all()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._close_files()

    def _queued(self) -> list[_Request]:
        waiting = [request for request in self._requests.values() if request.landed is None]
        return sorted(waiting, key=lambda request: (-request.priority, request.order))

    def _read_segment(self, request: _Request, piece: _Piece) -> tuple[int, ReadFailure | None]:
        """Bytes that arrived, and why not all of them did."""
        wanted = min(self._segment_bytes, piece.num_bytes - request.num_bytes_read)
        start = piece.destination + request.num_bytes_read
        done = 0
        while done < wanted:
            try:  # Python itself repeats a call that a signal interrupted
                offset = piece.offset + request.num_bytes_read + done
                got = os.preadv(self._descriptors[piece.file], [self._memory[start + done : start + wanted]], offset)
            except OSError as error:
                return done, self._failure(request, piece, done, error)
            if got == 0:
                return done, self._failure(request, piece, done, None)
            done += got
        return done, None

    def _damage(self, request: _Request) -> ReadFailure | None:
        """Says so when one of a request's pieces, which have all come, is not what was written."""
        first: ReadFailure | None = None
        for piece in request.pieces:
            expected, start = piece.expected, piece.destination + piece.skipped
            if expected is None:
                continue
            place = piece.offset + piece.skipped - expected.offset
            if expected.is_damaged(place, self._memory[start : start + piece.wanted]) and first is None:
                path, offset = self._paths[piece.file], expected.offset
                said = f"{expected.num_bytes} bytes at {offset} in {path} do not match their checksum"
                first = _read_failure(said, path, request.key, errno.EBADMSG)
                first.offset, first.num_bytes_read = offset, sum(each.num_bytes for each in request.pieces)
        return first

    def _failure(self, request: _Request, piece: _Piece, done: int, error: OSError | None) -> ReadFailure:
        path = self._paths[piece.file]
        wanted = f"{piece.num_bytes} bytes at {piece.offset}"
        if error is None:
            now = os.fstat(self._descriptors[piece.file]).st_size
            message = f"{path} ends at {now}, expected {wanted}: the file is truncated"
        else:
            message = f"read of {wanted} in {path} failed: {error.strerror}"
        failure = _read_failure(message, path, request.key, (error.errno or errno.EIO) if error else 0)
        failure.offset = piece.offset
        before = sum(each.num_bytes for each in request.pieces[: request.done])
        failure.num_bytes_read = before + request.num_bytes_read + done
        return failure


def _work(reader: weakref.ref[PureReader], changed: threading.Condition) -> None:
    """The life of the thread, which holds the reader only while there is something to read."""
    while True:
        with changed:
            while (reading := reader()) is not None and not reading._closed and not reading._queued():
                del reading
                changed.wait(FORGOTTEN_S)
            if reading is None or reading._closed:
                return
            request = reading._queued()[0]
            request.issued = True
        reading._advance(request)
        del reading, request


def _open(path: str, num_bytes: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == num_bytes:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _read_failure(f"{path} is not a regular file", path, -1, 0)
    raise _read_failure(f"{path} has {status.st_size} bytes, expected {num_bytes}", path, -1, 0)


def _read_failure(message: str, path: str, key: int, error: int) -> ReadFailure:
    failure = ReadFailure(message)
    failure.key, failure.path, failure.errno, failure.offset, failure.num_bytes_read = key, path, error, 0, 0
    return failure


def _require_priority(priority: float) -> None:
    if math.isnan(priority) or priority == -math.inf:
        raise ValueError("a priority is finite (prefetch) or +inf (demand)")


def _require_range(what: str, start: int, num_bytes: int, limit: int, key: int) -> None:
    if start % BLOCK_ALIGN_BYTES or num_bytes % BLOCK_ALIGN_BYTES:
        raise ValueError(f"key {key}: {num_bytes} bytes at {start} of the {what} are not on 4096-byte borders")
    if start < 0 or num_bytes <= 0 or start + num_bytes > limit:
        raise ValueError(f"key {key}: {num_bytes} bytes at {start} are not inside the {what} of {limit} bytes")
