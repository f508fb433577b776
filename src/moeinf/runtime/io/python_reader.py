"""The reference implementation of the native reader: one thread, a sorted list, buffered preadv."""

from __future__ import annotations

import errno
import math
import os
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf._native import Arena, ReadFailure, crc32c
from moeinf.types import BLOCK_ALIGN_BYTES, FloatArray, IntArray, OnWait, ReadDone, SumArray

SIGNAL_PERIOD_S: Final = 0.1  # between two calls of on_wait
CLOSE_PATIENCE_S: Final = 1.0  # for a read under way


@dataclass(slots=True)
class _Expected:
    """The sum of a block, and whether there is still reason to compare it."""

    num_bytes: int
    sum: int
    always: bool
    sound: bool = False


@dataclass(slots=True)
class _Request:
    key: int
    file: int
    offset: int
    destination: int
    num_bytes: int
    priority: float
    order: int  # ties: first come, first served
    num_bytes_read: int = 0
    issued: bool = False
    complete: bool = False
    expected: _Expected | None = None
    failure: ReadFailure | None = None


class PureReader:
    """Implements moeinf.types.Reader without native threads: the contract of NativeReader, only slower.

    One worker thread reads one segment at a time and takes the next from the request that sorts first.
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
        self._landed: list[_Request] = []  # complete and not collected, in the order in which they landed
        self._next_order = 0
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
        self._thread = threading.Thread(target=self._work, name="moeinf-pure-reader", daemon=True)
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
                self._expected[file, offset] = _Expected(num_bytes, wanted, always)

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
            new: dict[int, _Request] = {}
            columns = (keys.tolist(), files.tolist(), offsets.tolist(), destinations.tolist(), priorities.tolist())
            for key, file, offset, destination, priority in zip(*columns, strict=True):
                if key in self._requests or key in new:
                    raise ValueError(f"key {key} is submitted already")
                if not 0 <= file < len(self._paths):
                    raise ValueError(f"key {key}: there is no file {file}")
                _require_range("file", offset, num_bytes, self._sizes[file], key)
                _require_range("arena", destination, num_bytes, len(self._memory), key)
                _require_priority(priority)
                new[key] = _Request(key, file, offset, destination, num_bytes, priority, self._next_order + len(new))
                known = self._expected.get((file, offset))
                new[key].expected = known if known and known.num_bytes == num_bytes and not known.sound else None
            self._next_order += len(new)
            self._requests.update(new)
            self._changed.notify_all()

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        with self._changed:
            self._require_open()
            wanted = list(zip(keys.tolist(), priorities.tolist(), strict=True))
            for _, priority in wanted:
                _require_priority(priority)
            for key, priority in wanted:
                request = self._requests.get(key)
                if request is None or request.complete or request.priority == priority:
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
                landed = [request for request in self._landed if request.key in wanted]
                for request in landed:
                    if request.failure is not None:
                        self._forget([request])
                        raise request.failure
                if landed:
                    return self._forget(landed)
                self._changed.wait(SIGNAL_PERIOD_S)
                if self._on_wait is not None and (waited_s := time.monotonic() - started) >= SIGNAL_PERIOD_S:
                    self._on_wait(waited_s, self._paths[self._requests[min(wanted)].file])

    def poll(self) -> ReadDone:
        with self._changed:
            self._require_open()
            failed = self._forget([request for request in self._landed if request.failure is not None])
            return ReadDone(self._forget(list(self._landed)), failed)

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

    def _forget(self, landed: list[_Request]) -> IntArray:
        for request in landed:
            self._landed.remove(request)
            del self._requests[request.key]
        return np.array([request.key for request in landed], dtype=np.int64)

    def _close_files(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (queued := self._queued()) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                request = queued[0]
                request.issued = True
            started = time.perf_counter()
            num_bytes, failure = self._read_segment(request)
            failure = failure or self._damage(request, num_bytes)
            with self._changed:
                self._busy_s += time.perf_counter() - started
                self._bytes_read += num_bytes
                request.num_bytes_read += num_bytes
                request.failure = failure
                if failure is not None or request.num_bytes_read == request.num_bytes:
                    request.complete = True
                    self._landed.append(request)
                    self._changed.notify_all()

    def _queued(self) -> list[_Request]:
        waiting = [request for request in self._requests.values() if not request.complete]
        return sorted(waiting, key=lambda request: (-request.priority, request.order))

    def _read_segment(self, request: _Request) -> tuple[int, ReadFailure | None]:
        """Bytes that arrived, and why not all of them did."""
        wanted = min(self._segment_bytes, request.num_bytes - request.num_bytes_read)
        start = request.destination + request.num_bytes_read
        done = 0
        while done < wanted:
            try:  # Python itself repeats a call that a signal interrupted
                offset = request.offset + request.num_bytes_read + done
                got = os.preadv(self._descriptors[request.file], [self._memory[start + done : start + wanted]], offset)
            except OSError as error:
                return done, self._failure(request, done, error)
            if got == 0:
                return done, self._failure(request, done, None)
            done += got
        return done, None

    def _damage(self, request: _Request, num_bytes: int) -> ReadFailure | None:
        """Says so when a block that is complete with these last bytes is not what was written."""
        expected = request.expected
        if expected is None or request.num_bytes_read + num_bytes < request.num_bytes:
            return None
        block = self._memory[request.destination : request.destination + request.num_bytes]
        if crc32c(block) == expected.sum:
            expected.sound = not expected.always
            return None
        path = self._paths[request.file]
        failure = _read_failure(
            f"{request.num_bytes} bytes at {request.offset} in {path} do not match their checksum",
            path,
            request.key,
            errno.EBADMSG,
        )
        failure.offset, failure.num_bytes_read = request.offset, request.num_bytes
        return failure

    def _failure(self, request: _Request, done: int, error: OSError | None) -> ReadFailure:
        path = self._paths[request.file]
        wanted = f"{request.num_bytes} bytes at {request.offset}"
        if error is None:
            now = os.fstat(self._descriptors[request.file]).st_size
            message = f"{path} ends at {now}, expected {wanted}: the file is truncated"
        else:
            message = f"read of {wanted} in {path} failed: {error.strerror}"
        failure = _read_failure(message, path, request.key, (error.errno or errno.EIO) if error else 0)
        failure.offset = request.offset
        failure.num_bytes_read = request.num_bytes_read + done
        return failure


def _open(path: str, num_bytes: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == num_bytes:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
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
