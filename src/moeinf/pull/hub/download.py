"""Downloads a file in parallel ranges, written in order, so that what is on disk is always a prefix of it."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from moeinf.errors import HubError
from moeinf.pull.events import PullProgress
from moeinf.pull.hub.remote import ChangedError, Remote, RemoteFile
from moeinf.store.files import errors_named, open_regular, read_fully, sync_folder, write_fully

RANGE_BYTES = 4 << 20
_CONNECTIONS = 4  # times RANGE_BYTES: the 16 MiB that a kill may cost, and the memory that the window takes
_HASH_BYTES = 4 << 20
_QUIET_S = 30.0  # without a byte, until a line says so
_LOOK_S = 0.5  # between two looks at whether to go on


def fetch_bytes(remote: Remote) -> bytes:
    """Fetches a whole small file, and checks it against the Hub's hash. Raises HubError."""
    data = bytearray()
    remote.read(0, remote.file.num_bytes, data.extend)
    digest, expected = remote.file.hasher()
    digest.update(data)
    if digest.hexdigest() != expected:
        raise _mismatch(remote.file)
    return bytes(data)


def matches(path: Path, file: RemoteFile) -> bool:
    """Tells whether a file on this disk is what the Hub says it is. Reads all of it."""
    fd = open_regular(path)
    try:
        if os.fstat(fd).st_size != file.num_bytes:
            return False
        digest, expected = file.hasher()
        _hash_prefix(fd, file.num_bytes, path, digest)
        return bool(digest.hexdigest() == expected)
    finally:
        os.close(fd)


def held_bytes(file: RemoteFile, folder: Path) -> int:
    """Returns how many bytes of the file an earlier pull has left in the folder."""
    for path in (folder / file.name, _part(folder, file)):
        if path.is_file():
            return min(path.stat().st_size, file.num_bytes)
    return 0


def download(remote: Remote, folder: Path, progress: PullProgress) -> Path:
    """Fetches the file into the folder, going on behind the prefix that is there; its name appears when it is whole.

    Bytes that do not match the Hub's hash are discarded: a resumed file is then fetched once more from the start, a
    fresh one is a HubError. Blocks; progress.advance comes from the calling thread. Raises HubError, StoreError,
    DiskSpaceError.
    """
    file = remote.file
    path, part = folder / file.name, _part(folder, file)
    with errors_named(path):
        if path.is_file() and matches(path, file):
            return path
    resumed = True
    while resumed:
        resumed = held_bytes(file, folder) > 0
        try:
            if _fetch(remote, part, progress):
                with errors_named(path):
                    os.replace(part, path)
                    sync_folder(folder)
                return path
        except ChangedError:
            part.unlink(missing_ok=True)
            raise
        with errors_named(part):
            part.unlink()
        if resumed:
            progress.note(f"{file.name}: what was left of an interrupted pull is damaged; fetching it again")
    raise _mismatch(file)


def _fetch(remote: Remote, part: Path, progress: PullProgress) -> bool:
    """Completes the part file. Returns whether its content then has the Hub's hash."""
    file = remote.file
    digest, expected = file.hasher()
    with errors_named(part):
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with errors_named(part):
            done = os.fstat(fd).st_size
            if done > file.num_bytes:
                done = 0
                os.ftruncate(fd, 0)
            progress.start("pulling", file.name, file.num_bytes, done)
            _hash_prefix(fd, done, part, digest)
        for chunk in _in_order(remote, done, progress):
            with errors_named(part):
                write_fully(fd, chunk, done, part)
            digest.update(chunk)
            done += len(chunk)
            progress.advance(len(chunk))
        with errors_named(part):
            os.fsync(fd)
        progress.finish()
    finally:
        os.close(fd)
    return bool(digest.hexdigest() == expected)


def _hash_prefix(fd: int, num_bytes: int, path: Path, digest: hashlib._Hash) -> None:
    buffer = memoryview(bytearray(min(_HASH_BYTES, num_bytes)))
    for start in range(0, num_bytes, _HASH_BYTES):
        piece = buffer[: num_bytes - start]
        read_fully(fd, piece, start, path)
        digest.update(piece)


class _Range:
    """A range that is being fetched; `data` grows under the window's condition."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.data = bytearray()


class _Window:
    """Ranges that are fetched ahead of the reader, at most _CONNECTIONS of them, so memory is bounded.

    Workers are daemon threads: one that waits for a silent server must not hold up Ctrl-C.
    """

    def __init__(self, remote: Remote, start: int) -> None:
        self._remote = remote
        self._starts = iter(range(start, remote.file.num_bytes, RANGE_BYTES))
        self._todo: queue.SimpleQueue[_Range | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._stopped = False
        self.ranges: deque[_Range] = deque()
        for _ in range(_CONNECTIONS):
            self.extend()
            threading.Thread(target=self._work, daemon=True, name="moeinf-download").start()

    def extend(self) -> None:
        """Lets the workers begin the next range, if there is one."""
        start = next(self._starts, None)
        if start is not None:
            self.ranges.append(_Range(start, min(start + RANGE_BYTES, self._remote.file.num_bytes)))
            self._todo.put(self.ranges[-1])

    def wait(self, piece: _Range, seen: int, timeout_s: float) -> bytes:
        """Waits for bytes of the range behind the first `seen`; b"" after timeout_s. Raises a worker's error."""
        with self._changed:
            self._changed.wait_for(lambda: len(piece.data) > seen or self._error, timeout_s)
            if len(piece.data) == seen and self._error is not None:
                raise self._error
            return bytes(memoryview(piece.data)[seen:])

    def close(self) -> None:
        self._stopped = True
        for _ in range(_CONNECTIONS):
            self._todo.put(None)

    def _work(self) -> None:
        while (piece := self._todo.get()) is not None and not self._stopped:
            try:
                self._remote.read(piece.start, piece.end, self._sink(piece), lambda: self._stopped)
            except BaseException as error:  # reaches the caller through wait()
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()
                return

    def _sink(self, piece: _Range) -> Callable[[bytes], None]:
        def sink(chunk: bytes) -> None:
            with self._changed:
                piece.data += chunk
                self._changed.notify_all()

        return sink


def _in_order(remote: Remote, start: int, progress: PullProgress) -> Iterator[bytes]:
    """Yields the file's bytes from `start` on, in order, as they arrive."""
    window = _Window(remote, start)
    try:
        while window.ranges:
            piece, seen, quiet_s = window.ranges[0], 0, 0.0
            while seen < piece.end - piece.start:
                chunk = window.wait(piece, seen, _LOOK_S)
                if chunk:
                    seen, quiet_s = seen + len(chunk), 0.0
                    yield chunk
                    continue
                progress.waiting()
                quiet_s += _LOOK_S
                if quiet_s >= _QUIET_S:
                    progress.note(f"{remote.file.name}: no data for {_QUIET_S:.0f} s; still trying")
                    quiet_s = 0.0
            window.ranges.popleft()
            window.extend()
    finally:
        window.close()


def _part(folder: Path, file: RemoteFile) -> Path:
    return folder / f"{file.name}.part"


def _mismatch(file: RemoteFile) -> HubError:
    return HubError(
        f"{file.name}: the bytes received do not have the Hub's checksum; they were discarded, repeat the pull"
    )
