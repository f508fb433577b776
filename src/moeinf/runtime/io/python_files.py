"""The files and the memory of the reader in Python: what is read of which file, where to, and whether it is sound."""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from moeinf._native import Arena, ReadFailure, crc32c
from moeinf.runtime.io.reader_protocol import NO_OTHERS, OtherDisks
from moeinf.types import BLOCK_ALIGN_BYTES, IntArray, SumArray


@dataclass(slots=True)
class Expected:
    """The sum of a block, and from which disks there is still reason to compare it.

    ranges: where it is read range by range, how many bytes each has, their sum and the disk, as it was read last, by
    its place. sound: disks that have brought all of it, as it was written.
    """

    offset: int
    num_bytes: int
    sum: int
    always: bool
    sound: set[int] = field(default_factory=set)
    ranges: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def is_damaged(self, place: int, read: memoryview, disk: int) -> bool:
        """Takes bytes that were read from this place of the block on: whether all of it is known now, and damaged."""
        self.ranges[place] = len(read), crc32c(read), disk
        end = total = 0
        for start, (num_bytes, found, _) in sorted(self.ranges.items()):
            if start != end:
                return False
            zeros = np.zeros(num_bytes, np.uint8)
            end, total = end + num_bytes, crc32c(zeros, total) ^ crc32c(zeros) ^ found
        if end != self.num_bytes:
            return False
        damaged = total != self.sum
        disks = {disk for _, _, disk in self.ranges.values()}
        if damaged:
            self.ranges.clear()  # nobody can tell which of them it was
            self.sound.clear()
        elif not self.always and len(disks) == 1:  # one that had a part in it may have the rest wrong
            self.sound |= disks
        return damaged


@dataclass(slots=True)
class Piece:
    """A range of a file, and where it comes to in the arena. Both begin on block borders."""

    file: int
    offset: int
    destination: int
    num_bytes: int
    expected: Expected | None = None
    skipped: int = 0  # bytes before those that were asked for
    wanted: int = 0  # of these

    @property
    def is_part(self) -> bool:
        """Whether its sum is of more than that, so that others tell as well whether it is sound."""
        return self.expected is not None and self.wanted < self.expected.num_bytes


class ReaderFiles:
    """Open files, the arena that they are read into, and the sums that their blocks have. Files close with it."""

    def __init__(
        self, paths: Sequence[str], sizes: Sequence[int], arena: Arena, others: OtherDisks = NO_OTHERS
    ) -> None:
        """Raises OSError for a file that cannot be opened, and ReadFailure for one of another size."""
        self._descriptors: list[int] = []  # of the first disk's files, then of each other one's
        self._cuts = others.cuts
        self.num_disks = 1 + len(others.paths)
        self._memory = arena.array().data  # keeps the arena alive
        self._every_path = [*paths, *(str(path) for disk in others.paths for path in disk)]
        self._paths = list(paths)
        self._sizes = list(sizes)
        self._expected: dict[tuple[int, int], Expected] = {}  # by file and offset
        self._starts: list[tuple[int, int]] = []  # the keys of that, ascending
        try:
            for path, num_bytes in zip(self._every_path, self._sizes * self.num_disks, strict=True):
                self._descriptors.append(_open(path, num_bytes))
        except BaseException:
            self.close()
            raise

    def path(self, file: int, disk: int = 0) -> str:
        return self._every_path[file + disk * len(self._paths)]

    def expect(self, files: IntArray, offsets: IntArray, num_bytes: int, sums: SumArray, *, always: bool) -> None:
        for file, offset, wanted in zip(files.tolist(), offsets.tolist(), sums.tolist(), strict=True):
            if not 0 <= file < len(self._paths) or not 0 <= offset <= self._sizes[file] - num_bytes:
                raise ValueError(f"{num_bytes} bytes at {offset} of file {file} are not inside it")
            self._expected[file, offset] = Expected(offset, num_bytes, wanted, always)
        self._starts = sorted(self._expected)

    def block(self, key: int, file: int, offset: int, destination: int, num_bytes: int) -> Piece:
        """Of whole blocks, which come as they lie."""
        self._require_file(key, file)
        _require_range("file", offset, num_bytes, self._sizes[file], key)
        _require_range("arena", destination, num_bytes, len(self._memory), key)
        return Piece(file, offset, destination, num_bytes, self._sum(file, offset, num_bytes), 0, num_bytes)

    def piece(self, key: int, file: int, offset: int, destination: int, num_bytes: int) -> Piece:
        """The blocks that a range lies in, cut at the end of the file."""
        self._require_file(key, file)
        size = self._sizes[file]
        if offset < 0 or num_bytes <= 0 or offset + num_bytes > size:
            raise ValueError(f"key {key}: {num_bytes} bytes at {offset} are not inside the file of {size} bytes")
        start = offset // BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES
        end = -(-(offset + num_bytes) // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        _require_range("arena", destination, end - start, len(self._memory), key)
        expected = self._sum(file, offset, num_bytes)
        return Piece(file, start, destination, min(end, size) - start, expected, offset - start, num_bytes)

    def _sum(self, file: int, offset: int, num_bytes: int) -> Expected | None:
        """What the block has to have that a range lies in."""
        before = bisect_right(self._starts, (file, offset))
        if not before or self._starts[before - 1][0] != file:
            return None
        known = self._expected[self._starts[before - 1]]
        checked = len(known.sound) < (1 if self._cuts else self.num_disks)
        return known if offset + num_bytes <= known.offset + known.num_bytes and checked else None

    def _require_file(self, key: int, file: int) -> None:
        if not 0 <= file < len(self._paths):
            raise ValueError(f"key {key}: there is no file {file}")

    def read(self, key: int, piece: Piece, begun: int, most: int, disk: int) -> tuple[int, ReadFailure | None]:
        """Reads at most so many bytes behind those that came: how many arrived, and why not all of them did.

        disk: where several have all bytes; where each has some, the one that has these.
        """
        wanted = min(most, piece.num_bytes - begun)
        if self._cuts:
            period, first = self._cuts[piece.file]
            place = (piece.offset + begun) % period
            disk = int(place >= first)
            wanted = min(wanted, (period if disk else first) - place)
        number = piece.file + disk * len(self._paths)
        start = piece.destination + begun
        done = 0
        while done < wanted:
            try:  # Python itself repeats a call that a signal interrupted
                offset = piece.offset + begun + done
                got = os.preadv(self._descriptors[number], [self._memory[start + done : start + wanted]], offset)
            except OSError as error:
                return done, self._failure(key, piece, number, begun + done, error)
            if got == 0:
                return done, self._failure(key, piece, number, begun + done, None)
            done += got
        return done, None

    def damage(self, key: int, pieces: list[Piece], disk: int) -> ReadFailure | None:
        """Says so when one of these pieces, which have all come, is not what was written."""
        first: ReadFailure | None = None
        for piece in pieces:
            expected, start = piece.expected, piece.destination + piece.skipped
            if expected is None:
                continue
            place = piece.offset + piece.skipped - expected.offset
            read, source = self._memory[start : start + piece.wanted], 0 if self._cuts else disk
            if expected.is_damaged(place, read, source) and first is None:
                path, offset = self.path(piece.file, disk), expected.offset
                said = f"{expected.num_bytes} bytes at {offset} in {path} do not match their checksum"
                first = read_failure(said, path, key, errno.EBADMSG)
                first.offset, first.num_bytes_read = offset, sum(each.num_bytes for each in pieces)
        return first

    def can_replace(self, pieces: list[Piece], failure: ReadFailure) -> bool:
        """Whether another disk may have what this one did not bring.

        Of a slice that is damaged, the others of its expert would have to be read again as well.
        """
        sliced = any(piece.is_part for piece in pieces)
        return self.num_disks > 1 and not self._cuts and not (sliced and failure.errno == errno.EBADMSG)

    def _failure(self, key: int, piece: Piece, number: int, done: int, error: OSError | None) -> ReadFailure:
        path = self._every_path[number]
        wanted = f"{piece.num_bytes} bytes at {piece.offset}"
        if error is None:
            now = os.fstat(self._descriptors[number]).st_size
            message = f"{path} ends at {now}, expected {wanted}: the file is truncated"
        else:
            message = f"read of {wanted} in {path} failed: {error.strerror}"
        failure = read_failure(message, path, key, (error.errno or errno.EIO) if error else 0)
        failure.offset, failure.num_bytes_read = piece.offset, done
        return failure

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        self.close()


def _open(path: str, num_bytes: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == num_bytes:
        return descriptor
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise read_failure(f"{path} is not a regular file", path, -1, 0)
    raise read_failure(f"{path} has {status.st_size} bytes, expected {num_bytes}", path, -1, 0)


def read_failure(message: str, path: str, key: int, error: int) -> ReadFailure:
    failure = ReadFailure(message)
    failure.key, failure.path, failure.errno, failure.offset, failure.num_bytes_read = key, path, error, 0, 0
    return failure


def _require_range(what: str, start: int, num_bytes: int, limit: int, key: int) -> None:
    if start % BLOCK_ALIGN_BYTES or num_bytes % BLOCK_ALIGN_BYTES:
        raise ValueError(f"key {key}: {num_bytes} bytes at {start} of the {what} are not on 4096-byte borders")
    if start < 0 or num_bytes <= 0 or start + num_bytes > limit:
        raise ValueError(f"key {key}: {num_bytes} bytes at {start} are not inside the {what} of {limit} bytes")
