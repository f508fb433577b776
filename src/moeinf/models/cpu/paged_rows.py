"""Rows of several sequences in pages of memory that those have in common that begin alike (copy on write).

A sequence has its rows at addresses of its own, one plane behind the other, as kernels want them. What lies there are
pages of one file in memory. In that file a sequence has an extent of its own, of the same layout, and takes no memory
of it but for what it writes. One that begins as another does has the pages of the other's extents at its addresses, up
to the last whole page of what both have in common; the rows behind are copied. Only the pages of its own extent are
written: a sequence that goes back to where others share them goes on in a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakSet

import numpy as np

from moeinf._native import MappedPages, SharedPages, give_back
from moeinf.models.layers.kv_cache import SharedRows
from moeinf.types import ByteArray

MOST_MAPPINGS: Final = 32_000  # of all sequences: half of what Linux gives to a process unless told otherwise


class Stretch(NamedTuple):
    """Tokens of a sequence, from the end of the stretch before on, whose rows lie in one extent."""

    end: int
    extent: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows at the addresses of a sequence: [planes, tokens, row_bytes]."""

    memory: MappedPages
    by_plane: ByteArray  # [planes, plane_bytes]
    row_bytes: int
    at: int  # in an extent

    @property
    def plane_bytes(self) -> int:
        size: int = self.by_plane.shape[1]
        return size

    def map(self, extent: int, first: int, end: int) -> None:
        """Puts bytes first to end of each plane, whole pages of an extent, at their addresses."""
        planes = len(self.by_plane)
        if first == end:
            return
        if first == 0 and end == self.plane_bytes:  # one mapping, and not one a plane
            self.memory.map(extent + self.at, 0, planes * end, 0, 1)
        else:
            self.memory.map(extent + self.at, first, end - first, self.plane_bytes, planes)


class PagedRows:
    """The rows of one sequence."""

    shares = True

    def __init__(self, pages: RowPages) -> None:
        self._pages, self._rows = pages, list[_Rows]()
        self._own = pages.file.num_bytes  # where its extent begins
        self._size = 0  # of an extent
        self._shared: list[Stretch] = []  # what it may read, and never writes; behind is its own extent

    def rows(self, planes: int, capacity: int, row_bytes: int) -> ByteArray:
        """Memory for further rows [planes, tokens, row_bytes], with room for capacity tokens or more; called while a
        sequence is made, in the same order for each."""
        page = self._pages.page_bytes
        plane_bytes = -(-capacity * row_bytes // page) * page
        while plane_bytes % row_bytes:  # a plane begins with a page, and has whole rows
            plane_bytes += page
        num_bytes = planes * plane_bytes
        memory = MappedPages(self._pages.file, self._pages.file.grow(num_bytes), num_bytes)
        self._rows.append(_Rows(memory, memory.array().reshape(planes, plane_bytes), row_bytes, self._size))
        self._size += num_bytes
        return self._rows[-1].by_plane.reshape(planes, -1, row_bytes)

    def stretches(self, tokens: int) -> list[Stretch]:
        """Where its first tokens lie."""
        found = list[Stretch]()
        if tokens == 0:
            return found
        for end, extent in (*self._shared, Stretch(tokens, self._own)):
            found.append(Stretch(min(end, tokens), extent))
            if end >= tokens:
                break
        return found

    def begin_as(self, other: SharedRows, tokens: int) -> bool:
        """Takes the first tokens of another sequence, and forgets its own; False, and nothing is done, where there
        would be too many mappings."""
        assert isinstance(other, PagedRows)
        shared = other.stretches(tokens)
        if self._pages.num_mappings + self._mappings(len(shared)) > MOST_MAPPINGS:
            return False
        self.write_from(0)
        self._shared = shared  # first, as others must not write these pages from now on
        try:
            self._map(shared)
        except BaseException:  # no page of another's may be written
            self.write_from(0)
            raise
        for mine, theirs in zip(self._rows, other._rows, strict=True):
            first, end = self._whole(mine, tokens), tokens * mine.row_bytes
            mine.by_plane[:, first:end] = theirs.by_plane[:, first:end]
        return True

    def _map(self, shared: Sequence[Stretch]) -> None:
        start = 0
        for end, extent in shared:
            for rows in self._rows:
                rows.map(extent, self._whole(rows, start), self._whole(rows, end))
            start = end

    def write_from(self, tokens: int) -> None:
        """Writes no page that others have behind its first tokens, and forgets what lies there."""
        before, own = self.stretches(tokens), self._own
        begins = self._shared[-1].end if self._shared else 0
        if self._pages.is_shared(own, tokens):
            own = self._pages.file.grow(self._size)
        if own != self._own or tokens < begins:
            for rows in self._rows:
                first, end = self._whole(rows, tokens), tokens * rows.row_bytes
                kept = rows.by_plane[:, first:end].copy()
                rows.map(own, first, rows.plane_bytes)
                rows.by_plane[:, first:end] = kept
            dropped = {self._own, *(extent for _, extent in self._shared)}
            self._shared, self._own = [each for each in before if each.extent != own], own
            self._pages.release(dropped, self)

    def trim(self, tokens: int) -> None:
        """Gives back the pages that nobody reads once this has so many tokens."""
        begins = self._shared[-1].end if self._shared else 0
        for rows in self._rows:
            self._release(rows, self._own, 0, self._whole(rows, min(begins, tokens)))
            first = -(-tokens * rows.row_bytes // self._pages.page_bytes) * self._pages.page_bytes
            self._release(rows, self._own, first, rows.plane_bytes)

    def release_all_but(self, extent: int, kept: Sequence[tuple[int, float]]) -> None:
        """Gives back what an extent has beside these ranges of tokens, which ascend. An own extent is kept from where
        it begins."""
        for rows in self._rows:
            at = 0
            for start, end in kept:
                self._release(rows, extent, at, self._whole(rows, start))
                at = max(at, rows.plane_bytes if end == float("inf") else self._whole(rows, int(end)))
            self._release(rows, extent, at, rows.plane_bytes)

    def ranges(self, extent: int) -> Iterator[tuple[int, float]]:
        """The tokens, from one on and up to another, that it has in an extent."""
        start = 0
        for end, each in self._shared:
            if each == extent:
                yield start, end
            start = end
        if extent == self._own:
            yield start, float("inf")

    @property
    def num_mappings(self) -> int:
        return self._mappings(len(self._shared))

    def _mappings(self, stretches: int) -> int:
        return sum(len(rows.by_plane) for rows in self._rows) * (stretches + 1) if stretches else len(self._rows)

    def _whole(self, rows: _Rows, tokens: int) -> int:
        """Bytes of the whole pages of the first tokens of a plane."""
        return tokens * rows.row_bytes // self._pages.page_bytes * self._pages.page_bytes

    def _release(self, rows: _Rows, extent: int, first: int, end: int) -> None:
        if first < end:
            self._pages.file.release(extent + rows.at, first, end - first, rows.plane_bytes, len(rows.by_plane))


class RowPages:
    """Of all sequences of a model. Raises OSError where the system has no memory that can be shared."""

    def __init__(self) -> None:
        self.file = SharedPages()
        self.page_bytes = self.file.page_bytes
        self.sequences: WeakSet[PagedRows] = WeakSet()
        self.made: PagedRows | None = None  # whose rows are being made

    @contextmanager
    def sequence(self) -> Iterator[PagedRows]:
        """While entered, rows are made for this sequence."""
        made = self.made = PagedRows(self)
        try:
            yield made
        finally:
            self.made = None
        self.sequences.add(made)

    def used_bytes(self) -> int | None:
        """What they take of the machine's memory; None: what their tokens say."""
        return self.file.used_bytes

    @property
    def num_mappings(self) -> int:
        return sum(each.num_mappings for each in self.sequences)

    def is_shared(self, extent: int, tokens: int) -> bool:
        """Whether any sequence reads what lies in an extent behind so many tokens, and does not write it."""
        return any(end > tokens and end != float("inf") for each in self.sequences for _, end in each.ranges(extent))

    def release(self, extents: Collection[int], by: PagedRows) -> None:
        """Gives back what no sequence has of these extents."""
        for extent in extents:
            by.release_all_but(extent, sorted(found for each in self.sequences for found in each.ranges(extent)))


class PlainRows:
    """As PagedRows, in memory of a sequence's own: where pages cannot be shared."""

    shares = False

    def __init__(self) -> None:
        self._made = list[ByteArray]()

    def rows(self, planes: int, capacity: int, row_bytes: int) -> ByteArray:
        self._made.append(np.empty(planes * capacity * row_bytes, np.uint8))
        return self._made[-1].reshape(planes, capacity, row_bytes)

    def begin_as(self, other: SharedRows, tokens: int) -> bool:
        return False

    def write_from(self, tokens: int) -> None:
        pass

    def trim(self, tokens: int) -> None:
        if tokens == 0:
            for memory in self._made:
                give_back(memory)


class PlainPages:
    """As RowPages, where sequences have memory of their own."""

    def __init__(self) -> None:
        self.made: PlainRows | None = None

    @contextmanager
    def sequence(self) -> Iterator[PlainRows]:
        made = self.made = PlainRows()
        try:
            yield made
        finally:
            self.made = None

    def used_bytes(self) -> int | None:
        return None


SequencePages = RowPages | PlainPages


def sequence_pages() -> SequencePages:
    """Shared where the system has memory that can be."""
    try:
        return RowPages()
    except OSError:
        return PlainPages()
