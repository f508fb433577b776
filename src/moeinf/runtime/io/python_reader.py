"""The reference implementation of the native reader: one thread, a sorted list, buffered preadv."""

from __future__ import annotations

import errno
import math
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf._native import Arena, ReadFailure
from moeinf.runtime.io.python_files import Piece, ReaderFiles, read_failure
from moeinf.runtime.io.reader_protocol import NO_OTHERS, OnWait, OtherDisks, ReadDone
from moeinf.types import FloatArray, IntArray, SumArray

SIGNAL_PERIOD_S: Final = 0.1  # between two calls of on_wait
CLOSE_PATIENCE_S: Final = 1.0  # for a read under way
FORGOTTEN_S: Final = 1.0  # within which the thread of a reader that was forgotten ends


@dataclass(slots=True)
class _Request:
    key: int
    pieces: list[Piece]
    priority: float
    order: int  # ties: first come, first served
    done: int = 0  # pieces
    num_bytes_read: int = 0  # of the piece that follows them
    issued: bool = False
    disk: int = 0  # that it is read from
    landed: int | None = None  # once it is complete: how many had landed before it
    failure: ReadFailure | None = None


class PureReader:
    """Implements Reader (reader_protocol.py) without native threads: the contract of NativeReader, only slower.

    One worker thread reads one segment at a time and takes the next from the request that sorts first. It outlives what
    reading raises, which is the failure of that read, and ends where the reader is forgotten without `close`. With one
    read at a time nothing is gained from a second disk: one is asked where the disk before it failed.
    """

    backend = "pure"

    def __init__(
        self,
        paths: Sequence[str],
        sizes: Sequence[int],
        arena: Arena,
        *,
        segment_bytes: int = 1 << 20,
        on_wait: OnWait | None = None,
        others: OtherDisks = NO_OTHERS,
    ) -> None:
        self.notice = ""
        self._files = ReaderFiles(paths, sizes, arena, others)
        self._segment_bytes = segment_bytes
        self._requests: dict[int, _Request] = {}
        self._next_order = self._num_landed = 0
        self._bytes_read = 0
        self._busy_s = 0.0
        self._on_wait = on_wait
        self._closed = False
        self._changed = threading.Condition()  # guards all of the above
        self._thread = threading.Thread(
            target=_work, args=(weakref.ref(self), self._changed), name="moeinf-pure-reader", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self._files.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def expect(
        self, files: IntArray, offsets: IntArray, num_bytes: int, sums: SumArray, *, always: bool = False
    ) -> None:
        with self._changed:
            self._files.expect(files, offsets, num_bytes, sums, always=always)

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
            pieces = [
                [self._files.block(key, file, offset, destination, num_bytes)]
                for key, file, offset, destination in zip(*columns, strict=True)
            ]
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
                pieces.append(
                    [self._files.piece(key, *each) for i, each in enumerate(ranges) if i == 0 or each[3] != 0]
                )
            self._queue(keys.tolist(), pieces, priorities.tolist())

    def _queue(self, keys: list[int], pieces: list[list[Piece]], priorities: list[float]) -> None:
        new: dict[int, _Request] = {}
        for key, of_key, priority in zip(keys, pieces, priorities, strict=True):
            if key in self._requests or key in new:
                raise ValueError(f"key {key} is submitted already")
            _require_priority(priority)
            new[key] = _Request(key, of_key, priority, self._next_order + len(new))
        self._next_order += len(new)
        self._changed.notify_all()
        self._requests.update(new)  # last, and at once: an interrupt finds all of them queued, or none

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
                landed = [request for request in _landed(self._requests) if request.key in wanted]
                for request in landed:
                    if request.failure is not None:
                        _forget(self._requests, [request])
                        raise request.failure
                if landed:
                    return _forget(self._requests, landed)
                self._changed.wait(SIGNAL_PERIOD_S)
                if self._on_wait is not None and (waited_s := time.monotonic() - started) >= SIGNAL_PERIOD_S:
                    self._on_wait(waited_s, self._files.path(self._requests[min(wanted)].pieces[0].file))

    def poll(self) -> ReadDone:
        with self._changed:
            self._require_open()
            failed = _forget(
                self._requests, [request for request in _landed(self._requests) if request.failure is not None]
            )
            return ReadDone(_forget(self._requests, _landed(self._requests)), failed)

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
        self._files.close()
        return True

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the reader is closed")

    def _advance(self, request: _Request) -> None:
        """Reads the next segment of a request."""
        started = time.perf_counter()
        piece, num_bytes = request.pieces[request.done], 0
        failure: ReadFailure | None = None
        try:
            num_bytes, failure = self._files.read(
                request.key, piece, request.num_bytes_read, self._segment_bytes, request.disk
            )
            if failure is not None:
                failure.num_bytes_read += sum(each.num_bytes for each in request.pieces[: request.done])
            ended = failure is None and request.num_bytes_read + num_bytes == piece.num_bytes
            if ended and request.done + 1 == len(request.pieces):
                failure = self._files.damage(request.key, request.pieces, request.disk)
        except BaseException as error:  # whoever waits for the read is told, whatever it was
            path, code = self._files.path(piece.file), errno.ENOMEM if isinstance(error, MemoryError) else errno.EIO
            failure = read_failure(f"read in {path} failed: {error!r}", path, request.key, code)
        with self._changed:
            self._busy_s += time.perf_counter() - started
            self._bytes_read += num_bytes
            if failure is not None and (said := _read_from_next(request, failure, self._files)):
                self.notice = self.notice or said
                return
            request.num_bytes_read += num_bytes
            if request.num_bytes_read == piece.num_bytes:
                request.done, request.num_bytes_read = request.done + 1, 0
            request.failure = failure
            if failure is not None and failure.errno == errno.EBADMSG:
                _distrust(self._requests, request, failure)
            if failure is not None or request.done == len(request.pieces):
                request.landed, self._num_landed = self._num_landed, self._num_landed + 1
                self._changed.notify_all()


def _landed(requests: dict[int, _Request]) -> list[_Request]:
    """Those that are complete and not collected, in the order in which they landed."""
    landed = ((each.landed, each) for each in requests.values() if each.landed is not None)
    return [request for _, request in sorted(landed, key=lambda pair: pair[0])]


def _queued(requests: dict[int, _Request]) -> list[_Request]:
    waiting = [request for request in requests.values() if request.landed is None]
    return sorted(waiting, key=lambda request: (-request.priority, request.order))


def _forget(requests: dict[int, _Request], landed: list[_Request]) -> IntArray:
    for request in landed:
        del requests[request.key]
    return np.array([request.key for request in landed], dtype=np.int64)


def _work(reader: weakref.ref[PureReader], changed: threading.Condition) -> None:
    """The life of the thread, which holds the reader only while there is something to read."""
    while True:
        with changed:
            while (reading := reader()) is not None and not reading._closed and not _queued(reading._requests):
                del reading
                changed.wait(FORGOTTEN_S)
            if reading is None or reading._closed:
                return
            request = _queued(reading._requests)[0]
            request.issued = True
        reading._advance(request)
        del reading, request


def _read_from_next(request: _Request, failure: ReadFailure, files: ReaderFiles) -> str:
    """Begins a request that failed again, on the next disk, and says so: "" where there is none."""
    if request.disk + 1 == files.num_disks or not files.can_replace(request.pieces, failure):
        return ""
    request.disk += 1
    request.done = request.num_bytes_read = 0
    return f"{failure}: read from {files.path(request.pieces[0].file, request.disk)} instead"


def _distrust(requests: dict[int, _Request], damaged: _Request, failure: ReadFailure) -> None:
    """Of a block that is read range by range, what has landed and was not collected may be what is wrong."""
    blocks = {id(piece.expected) for piece in damaged.pieces if piece.is_part}
    for request in requests.values():
        if request.landed is None or request.failure is not None:
            continue
        if any(id(piece.expected) in blocks for piece in request.pieces):
            request.failure = read_failure(str(failure), failure.path, request.key, errno.EBADMSG)
            request.failure.offset, request.failure.num_bytes_read = failure.offset, failure.num_bytes_read


def _require_priority(priority: float) -> None:
    if math.isnan(priority) or priority == -math.inf:
        raise ValueError("a priority is finite (prefetch) or +inf (demand)")
