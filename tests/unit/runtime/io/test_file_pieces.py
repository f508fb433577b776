"""Files read piece by piece through a small buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeinf._native import Arena
from moeinf.config import RuntimeConfig
from moeinf.errors import StoreError
from moeinf.runtime.io import file_pieces
from moeinf.runtime.io import reader as reading
from moeinf.runtime.io.file_pieces import FilePieces

SIZE = 300_001  # bytes: a file that ends inside a block
BUFFER = 64 << 10


def opened(path: Path, num_bytes: int = SIZE, reader: str = "native") -> FilePieces:
    """With small reads through a small buffer."""
    return FilePieces(path, num_bytes, RuntimeConfig.of(reader=reader), buffer_bytes=BUFFER, chunk_bytes=8 << 10)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes()
    path = tmp_path_factory.mktemp("file") / "dense"
    path.write_bytes(content)
    return path, content


@pytest.fixture(params=["native", "pure"])
def file(request: pytest.FixtureRequest, written: tuple[Path, bytes]) -> Iterator[FilePieces]:
    file = opened(written[0], reader=request.param)
    yield file
    file.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, SIZE), length=st.integers(0, SIZE), unit=st.sampled_from([1, 2, 18, 144]))
def test_pieces_are_the_files_bytes_in_order_and_hold_whole_units(
    file: FilePieces, written: tuple[Path, bytes], start: int, length: int, unit: int
) -> None:
    length = min(length, SIZE - start) // unit * unit
    pieces = [piece.tobytes() for piece in file.read(start, length, unit)]
    assert b"".join(pieces) == written[1][start : start + length]
    assert all(0 < len(piece) <= BUFFER // 2 and len(piece) % unit == 0 for piece in pieces)


def test_a_piece_lasts_while_the_next_is_on_its_way(file: FilePieces, written: tuple[Path, bytes]) -> None:
    at = 0
    for piece in file.read(0, SIZE):
        assert piece.tobytes() == written[1][at : at + len(piece)]
        at += len(piece)
    assert at == SIZE


def test_nothing_but_the_buffer_is_taken(written: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def take(num_bytes: int) -> Arena:
        taken.append(num_bytes)
        return Arena(num_bytes)

    for module in (file_pieces, reading):
        monkeypatch.setattr(module, "Arena", take)
    file = opened(written[0])
    assert sum(len(piece) for piece in file.read(0, SIZE)) == SIZE
    file.close()
    assert taken == [BUFFER]


def test_a_file_of_another_size_is_refused(written: tuple[Path, bytes]) -> None:
    with pytest.raises(StoreError, match="dense"):
        opened(written[0], SIZE + 4096)


def test_a_file_that_was_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dense"
    path.write_bytes(bytes(SIZE))
    file = opened(path)
    path.write_bytes(bytes(1000))
    with pytest.raises(StoreError, match=r"dense.*pull"):
        list(file.read(0, SIZE))
    file.close()
