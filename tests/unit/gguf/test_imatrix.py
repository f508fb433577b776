"""Importance matrices: both forms of llama.cpp, against the gguf package and byte by byte, and what is none."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from moeinf.errors import UsageError
from moeinf.gguf.imatrix import Imatrix, Sums, imatrix_pieces, read_imatrix
from tests.support.gguf_bytes import header

RNG = np.random.default_rng(1)


def sums(matrices: int, cols: int) -> Sums:
    return Sums(RNG.random((matrices, cols), np.float32), np.arange(1, matrices + 1, dtype=np.float32))


WHOLE = Imatrix({"blk.0.ffn_up_exps.weight": sums(4, 30), "blk.0.attn_q.weight": sums(1, 64)}, ("a.txt", "é"), 7, 256)


def test_what_is_written_is_read_again_and_by_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"".join(imatrix_pieces(WHOLE)))
    found = read_imatrix(path)
    assert (found.texts, found.chunks, found.chunk_size) == (("a.txt", "é"), 7, 256)
    reader = GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 4 and reader.fields["general.type"].contents() == "imatrix"
    for name, each in WHOLE.sums.items():
        assert np.array_equal(found.sums[name].squares, each.squares)
        assert np.array_equal(found.sums[name].counts, each.counts)
        assert np.array_equal(tensors[name + ".in_sum2"].data, each.squares)
        assert tensors[name + ".counts"].shape.tolist() == [1, len(each.counts)], "as llama.cpp has them"


def older(entries: dict[str, tuple[int, np.ndarray]], end: bytes = b"") -> bytes:
    data = struct.pack("<i", len(entries))
    for name, (chunks, values) in entries.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", chunks, len(values))
        data += values.astype("<f4").tobytes()
    return data + end


def test_the_older_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    means = RNG.random(8).astype(np.float32)
    entries = {"blk.0.attn_q.weight": (5, 5 * means), "blk.1.attn_q.weight": (0, np.zeros(8, np.float32))}
    path.write_bytes(older(entries, struct.pack("<ii", 5, 8) + b"wiki.raw"))
    found = read_imatrix(path)
    assert (found.texts, found.chunks) == (("wiki.raw",), 5)
    assert list(found.sums) == ["blk.0.attn_q.weight"], "of the other, nothing was seen"
    each = found.sums["blk.0.attn_q.weight"]
    np.testing.assert_allclose(each.squares[0] / each.counts[0], means, rtol=1e-6)
    path.write_bytes(older(entries))  # before texts were named
    assert read_imatrix(path).texts == ()


WRONG = older({"a": (1, np.full(2, np.nan, np.float32))})
CUT = b"".join(imatrix_pieces(WHOLE))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "is truncated inside its first bytes"),
        (b"\xff" * 40, "is no importance matrix"),
        (struct.pack("<ii", 1, 10_000), "is no importance matrix, or damaged at entry 1"),
        (older({"blk.0.attn_q.weight": (5, np.ones(8, np.float32))})[:-3], "is truncated inside entry 1"),
        (WRONG, "'a' has sums that are no numbers above 0"),
        (header({"general.type": "model"}), "is a GGUF file, but no importance matrix"),
        (CUT[:-40], "is truncated"),
        (CUT.replace(b".counts", b".connts"), "'blk.0.attn_q.weight.counts' is missing, or of another type than F32"),
    ],
)
def test_what_is_none_is_refused_in_a_line(data: bytes, line: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=line) as refused:
        read_imatrix(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_imatrix(tmp_path / "none")
