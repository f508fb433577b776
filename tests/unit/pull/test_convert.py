"""Bytes of a checkpoint end where the format says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeinf.errors import CheckpointError, DiskSpaceError
from moeinf.pull.checkpoint.convert import Portions, convert_shard, read_bytes, segments
from moeinf.pull.checkpoint.layout import Quantised, Strided, View
from moeinf.pull.checkpoint.moves import DENSE, Move
from moeinf.pull.pull import pull
from moeinf.store.dense import dense_tensors
from moeinf.types import Format
from tests.support.checkpoints import random_tensors, write_checkpoint


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_every_expert_and_dense_tensor_lies_where_manifest_and_header_say(tmp_path: Path) -> None:
    tensors = random_tensors()
    model = pull(str(write_checkpoint(tmp_path / "checkpoint", tensors)), home=tmp_path / "home")
    layout = model.manifest.layout
    assert [spec.name for spec in layout.tensors] == ["gate", "up", "down"]
    for layer, path in enumerate(model.shard_paths):
        data = path.read_bytes()
        for expert in range(8):
            block = bytearray(layout.stride_bytes)
            for spec in layout.tensors:
                source = tensors[f"model.layers.{layer}.mlp.experts.{expert}.{spec.name}_proj.weight"]
                block[spec.offset_bytes : spec.offset_bytes + spec.num_bytes] = raw(source)
            assert data[expert * layout.stride_bytes :][: layout.stride_bytes] == block
    dense = model.dense_path.read_bytes()
    found = {spec.name: dense[spec.offset_bytes :][: spec.num_bytes] for spec in dense_tensors(model.dense_path)}
    assert found == {name: raw(tensor) for name, tensor in tensors.items() if ".experts." not in name}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=20), st.integers(1, 16))
def test_segments_cover_the_copies_byte_by_byte_and_stay_small(gaps: list[tuple[int, int]], limit: int) -> None:
    moves, offset = [], 0
    for number, (gap, size) in enumerate(gaps):
        moves.append(Move(offset + gap, size, number % 3, 1000 * number))
        offset += gap + size
    moved: dict[int, tuple[int, int]] = {}
    for segment in segments(moves, limit):
        assert 0 < segment.num_bytes <= limit
        assert sum(piece.num_bytes for piece in segment.pieces) == segment.num_bytes
        for piece in segment.pieces:
            assert segment.offset_bytes <= piece.source_offset
            assert piece.source_offset + piece.num_bytes <= segment.offset_bytes + segment.num_bytes
            for i in range(piece.num_bytes):
                assert moved.setdefault(piece.source_offset + i, (piece.target, piece.target_offset + i))
    wanted = {c.source_offset + i: (c.target, c.target_offset + i) for c in moves for i in range(c.num_bytes)}
    assert moved == wanted


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["q8_0", "q4_k", None])), max_size=12),
    st.integers(1024, 5000),
)
def test_segments_are_cut_between_blocks_and_each_lands_behind_the_one_before(
    kinds: list[tuple[int, Format | None]], limit: int
) -> None:
    moves, offset = [], 0
    for number, (units, format) in enumerate(kinds):
        transform = Quantised("t", "f32", format) if format else None
        moves.append(
            Move(offset, (1 + units) * (transform.unit_bytes if transform else 1000), 0, 10_000 * number, transform)
        )
        offset += moves[-1].num_bytes
    pieces = [piece for segment in segments(moves, limit) for piece in segment.pieces]
    for move in moves:
        at, target = move.source_offset, move.target_offset
        for piece in pieces:
            if move.source_offset <= piece.source_offset < move.source_offset + move.num_bytes:
                assert (piece.source_offset, piece.target_offset, piece.transform) == (at, target, move.transform)
                assert piece.num_bytes % piece.unit_bytes == 0
                at += piece.num_bytes
                target += move.transform.stored_bytes(piece.num_bytes) if move.transform else piece.num_bytes
        assert at == move.source_offset + move.num_bytes


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 3)), max_size=8), st.integers(1, 20))
def test_copies_of_the_same_bytes_are_read_at_once_and_never_cut(slabs: list[tuple[int, int, int]], limit: int) -> None:
    moves, offset = [], 0
    for gap, size, sharing in slabs:
        view = View(0, (size,), (1,))
        transform = Strided("t", "f32", "f32", view, view.shape, size)
        moves += [Move(offset + gap, size, 0, 0, transform) for _ in range(sharing)]
        offset += gap + size
    found = list(segments(moves, limit))
    assert [piece for segment in found for piece in segment.pieces] == moves
    assert sum(segment.num_bytes for segment in found) == sum(size for _, size, _ in slabs) == read_bytes(moves)
    for segment in found:
        assert all(
            segment.offset_bytes <= piece.source_offset
            and piece.source_offset + piece.num_bytes <= segment.offset_bytes + segment.num_bytes
            for piece in segment.pieces
        )


@pytest.mark.parametrize("flush_bytes", [1, 1 << 30])
def test_tensors_larger_than_all_buffers_are_copied(flush_bytes: int, tmp_path: Path) -> None:
    data = bytes(range(256)) * 100
    (tmp_path / "source").write_bytes(data)
    for name in ("dense.safetensors", "experts-00000.bin"):
        (tmp_path / name).touch()
    seen: list[int] = []
    moves, portions = [Move(0, 9999, DENSE, 1), Move(9999, 15601, 0, 0)], Portions(1000, flush_bytes)
    convert_shard(tmp_path / "source", moves, tmp_path, seen.append, portions=portions)
    assert (tmp_path / "dense.safetensors").read_bytes() == b"\0" + data[:9999]
    assert (tmp_path / "experts-00000.bin").read_bytes() == data[9999:]
    assert sum(seen) == len(data)


def test_a_source_that_ends_too_early_is_an_error_that_names_it_and_never_padding(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(100))
    (tmp_path / "experts-00000.bin").touch()
    with pytest.raises(CheckpointError, match="source: ends at byte 100, 1 bytes too early"):
        convert_shard(tmp_path / "source", [Move(0, 101, 0, 0)], tmp_path, lambda count: None)


def test_a_full_disk_ends_the_copy_in_one_line_and_the_reader_with_it(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(200 << 20))
    (tmp_path / "experts-00000.bin").symlink_to("/dev/full")
    with pytest.raises(DiskSpaceError, match=r"experts-00000\.bin: No space left.*goes on where it stopped"):
        convert_shard(tmp_path / "source", [Move(0, 200 << 20, 0, 0)], tmp_path, lambda count: None)
