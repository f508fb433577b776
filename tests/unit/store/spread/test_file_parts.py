"""Files whose bytes lie in two: read as one, written in parts, and never there but whole."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from moeinf._native import crc32c
from moeinf.store.spread.file_parts import Kept, Rest, copy_file, damaged_units, opened
from moeinf.types import SumRun

STRIDE, FIRST, COUNT = 1000, 300, 7
DATA = random.Random(5).randbytes(STRIDE * COUNT)


def sums(data: bytes = DATA) -> list[SumRun]:
    values = [crc32c(data[at : at + STRIDE]) for at in range(0, len(data), STRIDE)]
    return [SumRun("file", 0, len(data), STRIDE, np.array(values, np.uint32))]


def silent(num_bytes: int) -> None:
    pass


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def divided(whole: Path) -> tuple[Path, Rest]:
    """The file in two parts, of which each reads as zeros where the other has the bytes."""
    parts = [whole.with_name("first"), whole.with_name("rest")]
    with opened(whole) as file:
        for path, kept in zip(parts, (Kept(0, FIRST, STRIDE), Kept(FIRST, STRIDE, STRIDE)), strict=True):
            assert copy_file(file, path, len(DATA), sums(), kept, silent) == ""
    return parts[0], Rest(parts[1], FIRST, STRIDE)


def test_parts_have_the_bytes_that_they_keep(whole: Path) -> None:
    first, rest = divided(whole)
    for number in range(COUNT):
        at = number * STRIDE
        assert first.read_bytes()[at : at + STRIDE] == DATA[at : at + FIRST] + bytes(STRIDE - FIRST)
        assert rest.path.read_bytes()[at : at + STRIDE] == bytes(FIRST) + DATA[at + FIRST : at + STRIDE]


def test_parts_read_as_the_whole(whole: Path) -> None:
    first, rest = divided(whole)
    generator = random.Random(1)
    with opened(first, rest) as file:
        for _ in range(200):
            start = generator.randrange(len(DATA))
            end = generator.randint(start, len(DATA))
            buffer = bytearray(end - start)
            file.read(memoryview(buffer), start)
            assert bytes(buffer) == DATA[start:end]
        assert copy_file(file, whole.with_name("back"), len(DATA), sums(), None, silent) == ""
        assert list(damaged_units(file, len(DATA), sums(), silent)) == []
    assert whole.with_name("back").read_bytes() == DATA


def test_a_file_that_does_not_match_its_sums_is_not_written(whole: Path) -> None:
    wrong = bytearray(DATA)
    wrong[3 * STRIDE + 10] ^= 1
    whole.write_bytes(wrong)
    target = whole.with_name("target")
    with opened(whole) as file:
        assert (
            copy_file(file, target, len(DATA), sums(), None, silent) == "1000 bytes at 3000 do not match their checksum"
        )
        assert list(damaged_units(file, len(DATA), sums(), silent)) == [(3000, 4000)]
    assert [path.name for path in whole.parent.iterdir()] == ["file"]


def test_bytes_without_sums_are_copied_too(whole: Path) -> None:
    some = [SumRun("file", 2000, 1500, 1000, np.array([crc32c(DATA[2000:3000]), crc32c(DATA[3000:3500])], np.uint32))]
    done: list[int] = []
    with opened(whole) as file:
        assert copy_file(file, whole.with_name("target"), len(DATA), some, None, done.append) == ""
    assert whole.with_name("target").read_bytes() == DATA and sum(done) == len(DATA)


def test_a_file_that_ends_early_is_an_error(whole: Path) -> None:
    whole.write_bytes(DATA[:-1])
    with opened(whole) as file, pytest.raises(OSError, match="too early"):
        copy_file(file, whole.with_name("target"), len(DATA), sums(), None, silent)
    assert [path.name for path in whole.parent.iterdir()] == ["file"]
