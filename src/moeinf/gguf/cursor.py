"""Reads what comes next of a GGUF header, however the bytes are got, and nothing behind the end of the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from moeinf.errors import CheckpointError
from moeinf.store.files import open_regular, read_fully

MAX_HEADER_BYTES = 256 << 20  # a vocabulary of 260,000 tokens with its merges takes a tenth of that
AGAIN = "fetch it again"
_FIRST_READ, _LONGEST_READ = 1 << 18, 1 << 24

Read = Callable[[int, int], bytes]  # so many bytes from an offset, of which that many are there


@contextmanager
def opened(path: Path) -> Iterator[tuple[Read, int]]:
    """How the bytes of a file are read, and how many there are. Raises OSError."""
    fd = open_regular(path)
    try:

        def read(offset: int, num_bytes: int) -> bytes:
            buffer = bytearray(num_bytes)
            read_fully(fd, memoryview(buffer), offset, path)
            return bytes(buffer)

        yield read, os.fstat(fd).st_size
    finally:
        os.close(fd)


class Cursor:
    """Takes what comes next of a file, and reads ahead of that in growing pieces."""

    def __init__(self, read: Read, num_bytes: int, where: str) -> None:
        self._read, self.num_bytes, self._where = read, num_bytes, where
        self._held, self._at, self._start = b"", 0, 0  # what was read, where in it, and where it lies in the file
        self._piece = _FIRST_READ

    @property
    def offset(self) -> int:
        return self._start + self._at

    def require(self, num_bytes: int, what: str) -> None:
        """Refuses what the rest of the file, or a header, has no room for."""
        end = self.offset + num_bytes
        if end > self.num_bytes:
            raise CheckpointError(f"{self._where} is truncated inside {what} ({self.num_bytes} bytes); {AGAIN}")
        if end > MAX_HEADER_BYTES:
            raise CheckpointError(f"{self._where} has a header of more than {MAX_HEADER_BYTES} bytes; it is damaged")

    def take(self, num_bytes: int, what: str) -> bytes:
        at, end = self._at, self._at + num_bytes
        if end > len(self._held):
            self.require(num_bytes, what)
            missing = max(end - len(self._held), min(self._piece, self.num_bytes - self._start - len(self._held)))
            self._held = self._held[at:] + self._read(self._start + len(self._held), missing)
            self._start, at, end = self._start + at, 0, num_bytes
            self._piece = min(2 * self._piece, _LONGEST_READ)
        self._at = end
        return self._held[at:end]

    def number(self, width: int, what: str) -> int:
        return int.from_bytes(self.take(width, what), "little")

    def string(self, limit: int, what: str) -> str:
        length = self.number(8, what)
        if length > limit:
            raise CheckpointError(f"{self._where}: {what} has a text of {length} bytes; the file is damaged")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self._where}: {what} is no text in UTF-8; the file is damaged") from error

    def strings(self, count: int, what: str) -> list[str]:
        """As `string`, of a hundred thousands."""
        self.require(8 * count, what)
        found: list[str] = []
        while len(found) < count:
            held, at = self._held, self._at
            try:
                for _ in range(count - len(found)):
                    begin = at + 8
                    end = begin + int.from_bytes(held[at:begin], "little")
                    if end > len(held) or begin > len(held):
                        break
                    found.append(held[begin:end].decode())
                    at = end
            except UnicodeDecodeError as error:
                raise CheckpointError(f"{self._where}: {what} is no text in UTF-8; the file is damaged") from error
            self._at = at
            if len(found) < count:  # one that lies across the end of what is held
                found.append(self.string(MAX_HEADER_BYTES, what))
        return found
