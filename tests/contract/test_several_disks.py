"""One suite, every reader: the same files on several disks, whole or divided, damaged, missing or slow."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeinf._native import Arena, NativeReader, ReadFailure, crc32c
from moeinf.runtime.io.python_reader import PureReader
from moeinf.runtime.io.reader_protocol import OtherDisks
from moeinf.types import IntArray

BLOCK = 4096
EXPERT_BYTES = 12 * BLOCK
NUM_EXPERTS = 8
NUM_FILES = 2
NUM_KEYS = NUM_FILES * NUM_EXPERTS
CUTS = [(EXPERT_BYTES, 5 * BLOCK)] * NUM_FILES
Reader = NativeReader | PureReader
Slots = npt.NDArray[np.uint8]


class Disks:
    """Two files of random bytes on each of some disks, which are folders."""

    def __init__(self, kind: str, folder: Path, *, others: int = 1, cuts: Sequence[tuple[int, int]] = ()) -> None:
        self.content = np.random.default_rng(9).integers(0, 256, (NUM_KEYS, EXPERT_BYTES), dtype=np.uint8)
        self.paths = [[folder / f"disk-{disk}" / f"{i}.bin" for i in range(NUM_FILES)] for disk in range(1 + others)]
        for disk in self.paths:
            disk[0].parent.mkdir(parents=True)
            for path, part in zip(disk, np.split(self.content, NUM_FILES), strict=True):
                part.tofile(path)
        self._kind, self._cuts = kind, cuts

    def open(self, *, always: bool = True, segment_bytes: int = 2 * BLOCK) -> tuple[Reader, Slots]:
        """A reader that knows the sums of the experts, and a slot for each of them. always: see Reader.expect."""
        arena, sizes = Arena(NUM_KEYS * EXPERT_BYTES), [NUM_EXPERTS * EXPERT_BYTES] * NUM_FILES
        reader: Reader
        if self._kind == "pure":
            names, others = [str(path) for path in self.paths[0]], OtherDisks(self.paths[1:], self._cuts)
            reader = PureReader(names, sizes, arena, segment_bytes=segment_bytes, others=others)
        else:
            reader = NativeReader(
                [path for disk in self.paths for path in disk],
                sizes,
                arena,
                backend="io_uring" if self._kind == "io_uring" else "threads",
                segment_bytes=segment_bytes,
                disks=len(self.paths),
                cuts=list(self._cuts),
            )
        files, offsets = places(np.arange(NUM_KEYS))
        sums = np.array([crc32c(each.tobytes()) for each in self.content], np.uint32)
        reader.expect(files, offsets, EXPERT_BYTES, sums, always=always)
        return reader, arena.array().reshape(NUM_KEYS, EXPERT_BYTES)

    def spoil(self, disk: int, key: int, at: int = 100) -> None:
        file, expert = divmod(key, NUM_EXPERTS)
        with self.paths[disk][file].open("r+b") as opened:
            opened.seek(expert * EXPERT_BYTES + at)
            opened.write(bytes([self.content[key, at] ^ 1]))


def places(keys: IntArray) -> tuple[IntArray, IntArray]:
    """The file of each expert, and where it begins there."""
    files, experts = np.divmod(keys, NUM_EXPERTS)
    return files, experts * EXPERT_BYTES


def read(reader: Reader, *numbers: int) -> None:
    keys = np.array(numbers, np.int64)
    files, offsets = places(keys)
    reader.submit(keys, files, offsets, keys * EXPERT_BYTES, EXPERT_BYTES, np.full(len(keys), np.inf))
    while len(keys):
        keys = np.setdiff1d(keys, reader.wait_any(keys))


@pytest.mark.parametrize("others", [1, 2])
def test_every_expert_is_read_whole(others: int, kind: str, tmp_path: Path) -> None:
    disks = Disks(kind, tmp_path, others=others)
    reader, slots = disks.open()
    read(reader, *range(NUM_KEYS))
    assert np.array_equal(slots, disks.content) and reader.notice == ""
    assert reader.bytes_read() == slots.size
    reader.close()


@given(damaged=st.lists(st.sets(st.integers(0, 2), max_size=3), min_size=NUM_KEYS, max_size=NUM_KEYS))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_expert_is_read_as_long_as_one_disk_has_it(
    damaged: list[set[int]], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disks = Disks(kind, tmp_path_factory.mktemp("disks"), others=2)
    for key, on in enumerate(damaged):
        for disk in on:
            disks.spoil(disk, key)
    reader, slots = disks.open()
    for _ in range(2):
        for key, on in enumerate(damaged):
            if len(on) == 3:
                with pytest.raises(ReadFailure) as failure:
                    read(reader, key)
                assert failure.value.errno == errno.EBADMSG and failure.value.key == key
            else:
                read(reader, key)
                assert np.array_equal(slots[key], disks.content[key])
    reader.close()


@pytest.mark.parametrize("segment_bytes", [2 * BLOCK, EXPERT_BYTES])
def test_what_one_disk_has_right_says_nothing_of_another(segment_bytes: int, kind: str, tmp_path: Path) -> None:
    disks = Disks(kind, tmp_path)
    for key in range(NUM_KEYS):
        disks.spoil(1, key)
    reader, slots = disks.open(always=False, segment_bytes=segment_bytes)
    for round in range(12):
        for key in range(NUM_KEYS):  # at first one by one, from the disk that is asked first
            if round < 2:
                read(reader, key)
        read(reader, *range(NUM_KEYS))
        assert np.array_equal(slots, disks.content)
        slots[:] = 0
    reader.close()


def test_a_divided_file_is_read_from_the_disk_that_has_each_byte(kind: str, tmp_path: Path) -> None:
    disks, first = Disks(kind, tmp_path, cuts=CUTS), CUTS[0][1]
    for key in range(NUM_KEYS):  # nobody looks at what the other disk has
        for disk, at in ((0, first), (0, EXPERT_BYTES - 1), (1, 0), (1, first - 1)):
            disks.spoil(disk, key, at)
    reader, slots = disks.open()
    read(reader, *range(NUM_KEYS))
    assert np.array_equal(slots, disks.content)
    disks.spoil(1, 3, first)
    with pytest.raises(ReadFailure) as failure:
        read(reader, 3)
    assert failure.value.errno == errno.EBADMSG
    reader.close()


@pytest.mark.parametrize("cuts", [[], CUTS], ids=["copied", "divided"])
def test_ranges_within_an_expert_are_read(cuts: list[tuple[int, int]], kind: str, tmp_path: Path) -> None:
    disks, half = Disks(kind, tmp_path, cuts=cuts), 15_000
    reader, slots = disks.open()
    at, key = 2 * EXPERT_BYTES + 5000, np.array([7])
    starts, into = np.array([[at, at + half]]), np.array([[0, 8 * BLOCK]])
    reader.submit_pieces(key, np.zeros_like(starts), starts, into, np.full_like(starts, half), np.array([np.inf]))
    reader.wait_any(key)
    memory, (first, second) = slots.ravel(), (into + starts % BLOCK)[0].tolist()
    found = np.concatenate([memory[first : first + half], memory[second : second + half]])
    assert np.array_equal(found, disks.content[2, 5000 : 5000 + 2 * half])
    reader.close()


def test_a_file_that_is_missing_on_a_disk_is_an_error(kind: str, tmp_path: Path) -> None:
    disks = Disks(kind, tmp_path)
    disks.paths[1][1].unlink()
    with pytest.raises(FileNotFoundError, match=r"disk-1"):
        disks.open()


def test_a_file_that_was_cut_on_a_disk_is_read_from_the_other(kind: str, tmp_path: Path) -> None:
    disks = Disks(kind, tmp_path)
    reader, slots = disks.open()
    for path in disks.paths[0]:
        path.write_bytes(b"")
    read(reader, *range(NUM_KEYS))
    assert np.array_equal(slots, disks.content)
    assert "disk-0" in reader.notice and "instead" in reader.notice and "disk-1" in reader.notice
    reader.close()
