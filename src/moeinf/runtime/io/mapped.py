"""Tables in a mapped file, of which rows are looked up: they are read when they are asked for, and never as a whole."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np

from moeinf.types import ByteArray, IntArray

CheckRows = Callable[[IntArray], None]


class MappedFile:
    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that cannot be mapped."""
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            self._mapped.madvise(mmap.MADV_RANDOM)  # reading around a row would bring 32 pages that nobody asked for

    def part(self, start: int, num_bytes: int) -> ByteArray:
        return np.frombuffer(self._mapped, np.uint8)[start : start + num_bytes]

    def row_check(self, start: int, row_bytes: int, check: CheckRows | None) -> CheckRows | None:
        """`check` of the rows of the table at `start`, which are asked for all at once before the first is touched.

        A disk then has as many reads under way as there are rows, where faults would bring one after the other.
        """
        if not hasattr(mmap, "MADV_WILLNEED"):
            return check

        def prepare(rows: IntArray) -> None:
            if len(rows) > 1:
                pages = (start + np.unique(rows) * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
                for page in np.unique(pages).tolist():
                    self._mapped.madvise(mmap.MADV_WILLNEED, page, min(mmap.PAGESIZE + row_bytes, self._left(page)))
            if check is not None:
                check(rows)

        return prepare

    def _left(self, start: int) -> int:
        return len(self._mapped) - start
