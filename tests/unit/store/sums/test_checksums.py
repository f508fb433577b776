"""checksums.bin: what is written is read, and whatever else is refused by name."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from moeinf._native import crc32c, crc32c_joined, crc32c_units
from moeinf.errors import StoreError
from moeinf.store.sums.checksums import dump_checksums, parse_checksums
from moeinf.types import SumRun

SIZES = {"a.bin": 1000, "b.bin": 64}


def runs() -> list[SumRun]:
    return [
        SumRun("a.bin", 0, 1000, 300, np.arange(4, dtype=np.uint32)),
        SumRun("b.bin", 4, 60, 60, np.array([0xFFFFFFFF], np.uint32)),
    ]


def as_file(head: bytes, sums: bytes) -> bytes:
    data = b"moeinf checksums 1\n" + head + b"\n" + sums
    return data + hashlib.sha256(data).digest()


def test_what_is_written_is_read() -> None:
    found = parse_checksums(dump_checksums(runs()), "here", SIZES)
    for a, b in zip(found, runs(), strict=True):
        assert (a.file, a.start, a.num_bytes, a.unit_bytes) == (b.file, b.start, b.num_bytes, b.unit_bytes)
        assert a.sums.tolist() == b.sums.tolist()


def test_every_flipped_bit_and_every_length_is_refused() -> None:
    data = dump_checksums(runs())
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreError, match="here"):
            parse_checksums(bytes(wrong), "here", SIZES)
    for length in range(len(data)):
        with pytest.raises(StoreError, match="here"):
            parse_checksums(data[:length], "here", SIZES)


@pytest.mark.parametrize(
    "table",
    [
        [],
        {},
        [["c.bin", 0, 4, 4]],
        [["a.bin", 0, 4]],
        [["a.bin", -1, 4, 4]],
        [["a.bin", 0, 1004, 1004]],
        [["a.bin", 997, 4, 4]],
        [["a.bin", 0, 4, 0]],
        [["a.bin", 0, 4, 5]],
        [["a.bin", 0, 4.0, 4]],
        [["a.bin", 0, True, 1]],
        [["a.bin", 0, 1 << 80, 1]],
        [["a.bin", 0, 8, 4]],
    ],
    ids=str,
)
def test_runs_that_fit_no_file_are_refused(table: object) -> None:
    with pytest.raises(StoreError, match="here"):
        parse_checksums(as_file(json.dumps({"runs": table}).encode(), bytes(4)), "here", SIZES)


def test_sums_of_units_join_to_the_sum_of_the_whole() -> None:
    data = np.random.default_rng(1).integers(0, 256, 100_003, dtype=np.uint8)
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(data[40_000:], crc32c(data[:40_000])) == crc32c(data)
    for unit in (1000, 4096, 100_003, 200_000):
        sums = crc32c_units(data, unit)
        assert len(sums) == -(-len(data) // unit)
        assert crc32c_joined(sums, unit, len(data)) == crc32c(data)
    with pytest.raises(ValueError, match="sums do not cover"):
        crc32c_joined(sums, 10, 1000)
