"""Tables in a file, of which rows are looked up: they are read when they are asked for, and never as a whole."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.errors import StoreError
from moeinf.runtime.io.reader import remedy_of_read
from moeinf.types import ByteArray, IntArray

CheckRows = Callable[[IntArray], None]
PIECE_BYTES: Final = 4 << 20  # of a table that is read from its first to its last byte


class RowFile:
    """A file of tables, open for as long as the object lives.

    It is not mapped: where the file was cut or a sector is bad, a read is an error, while touching a mapped page would
    be a signal that ends the process.
    """

    def __init__(self, path: Path, remedy: str) -> None:
        """remedy: the advice for a file that is damaged. Raises OSError."""
        self._path, self._remedy = path, remedy
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._advise(0, 0, "RANDOM")  # reading around a row would bring 32 pages that nobody asked for

    @property
    def num_bytes(self) -> int:
        """Of the file, as long as it is now."""
        return os.fstat(self._fd).st_size

    def read(self, start: int, num_bytes: int) -> ByteArray:
        """Returns a copy of a part of the file, [num_bytes]. Raises StoreError."""
        found: ByteArray = np.empty(num_bytes, np.uint8)
        self._fill(found.data, start)
        return found

    def pieces(self, start: int, num_bytes: int) -> Iterator[ByteArray]:
        """Yields a part of the file in order, piece by piece. Raises StoreError."""
        for done in range(0, num_bytes, PIECE_BYTES):
            yield self.read(start + done, min(PIECE_BYTES, num_bytes - done))

    def table(
        self, start: int, num_rows: int, row_bytes: int, check: CheckRows | None = None
    ) -> Callable[[IntArray], ByteArray]:
        """Returns what looks up rows of the table at `start`: numbers [n] -> their bytes [n * row_bytes].

        check: is given the numbers first. What it returns raises StoreError, IndexError for a number of no row.
        """

        def rows(numbers: IntArray) -> ByteArray:
            asked: list[int] = numbers.tolist()
            if asked and not 0 <= min(asked) <= max(asked) < num_rows:
                raise IndexError(f"rows {min(asked)} to {max(asked)} of a table of {num_rows}")
            if len(asked) > 1:
                self._ask_for({start + number * row_bytes for number in asked}, row_bytes)
            if check is not None:
                check(numbers)
            found: ByteArray = np.empty(len(asked) * row_bytes, np.uint8)
            into = found.data
            for i, number in enumerate(asked):
                self._fill(into[i * row_bytes : (i + 1) * row_bytes], start + number * row_bytes)
            return found

        return rows

    def _ask_for(self, starts: set[int], num_bytes: int) -> None:
        """Has a disk read all of the parts at once, before the first is waited for."""
        for start in starts:
            self._advise(start, num_bytes, "WILLNEED")

    def _advise(self, start: int, num_bytes: int, advice: str) -> None:
        """Only a hint, which not every system takes, and which a filter of system calls may refuse."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._fd, start, num_bytes, getattr(os, f"POSIX_FADV_{advice}"))

    def _fill(self, into: memoryview, start: int) -> None:
        done = 0
        while done < len(into):
            try:
                count = os.preadv(self._fd, [into[done:]], start + done)
            except OSError as error:
                reason = f"{self._path}: {len(into)} bytes at {start} cannot be read: {error.strerror}"
                raise StoreError(f"{reason}; {remedy_of_read(error, self._remedy)}") from error
            if not count:
                wanted = f"{len(into)} bytes at {start}"
                reason = f"{self._path} ends at {self.num_bytes}, expected {wanted}: the file is truncated"
                raise StoreError(f"{reason}; {self._remedy}")
            done += count
