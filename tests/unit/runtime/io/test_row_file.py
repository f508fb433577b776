"""Rows of tables in files: read in full, however the system cuts a read, and a line where the file lacks them."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from moeinf.errors import StoreError
from moeinf.runtime.io.row_file import PIECE_BYTES, RowFile

ROW, ROWS, START = 300, 50, 77


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "table.bin"
    file.write_bytes(np.random.default_rng(0).bytes(START + ROW * ROWS))
    return file


def test_rows_come_in_any_order_and_however_short_the_reads_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = np.fromfile(path, np.uint8)[START:].reshape(ROWS, ROW)
    table = RowFile(path, "mend it").table(START, ROWS, ROW)
    numbers = np.array([7, 0, ROWS - 1, 7])
    assert np.array_equal(table(numbers), wanted[numbers].reshape(-1))
    assert len(table(np.array([], np.int64))) == 0
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: whole(fd, [buffers[0][:17]], offset))
    assert np.array_equal(table(numbers), wanted[numbers].reshape(-1))
    assert np.array_equal(np.concatenate([*RowFile(path, "").pieces(START, 999)]), wanted.reshape(-1)[:999])


@pytest.mark.parametrize("number", [-1, ROWS])
def test_a_row_that_the_table_has_not_is_none_of_its_neighbour(path: Path, number: int) -> None:
    with pytest.raises(IndexError):
        RowFile(path, "").table(START, ROWS, ROW)(np.array([1, number]))


def test_a_table_is_read_whole_in_pieces(tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(2 * PIECE_BYTES + 5)
    (tmp_path / "large.bin").write_bytes(data)
    pieces = list(RowFile(tmp_path / "large.bin", "").pieces(3, len(data) - 3))
    assert len(pieces) == 3 and b"".join(piece.tobytes() for piece in pieces) == data[3:]


def test_a_file_that_is_cut_is_a_line_and_goes_on_once_it_is_whole(path: Path) -> None:
    table, whole = RowFile(path, "mend it").table(START, ROWS, ROW), path.read_bytes()
    os.truncate(path, START + 4 * ROW)
    assert table(np.array([3])).tobytes() == whole[START + 3 * ROW : START + 4 * ROW]
    with pytest.raises(StoreError) as failed:
        table(np.array([0, 4]))
    ends = f"{path} ends at {START + 4 * ROW}, expected {ROW} bytes at {START + 4 * ROW}: the file is truncated"
    assert str(failed.value) == f"{ends}; mend it"
    path.write_bytes(whole)
    assert table(np.array([4])).tobytes() == whole[START + 4 * ROW : START + 5 * ROW]


def test_a_bad_sector_is_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = RowFile(path, "mend it").table(START, ROWS, ROW)

    def refused(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", refused)
    with pytest.raises(StoreError) as failed:
        table(np.array([1]))
    reason = f"{path}: {ROW} bytes at {START + ROW} cannot be read: Input/output error; the disk reports a fault"
    assert str(failed.value).startswith(reason) and "mend it" not in str(failed.value)


def test_a_file_is_closed_with_its_last_table(path: Path) -> None:
    table = RowFile(path, "").table(START, ROWS, ROW)
    assert table(np.array([0])).size and path in open_files()
    del table
    gc.collect()
    assert path not in open_files()


def open_files() -> set[Path]:
    with os.scandir("/proc/self/fd") as entries:
        return {Path(os.readlink(entry.path)) for entry in entries if entry.is_symlink()}
