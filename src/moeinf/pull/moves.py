"""Which bytes of a checkpoint go where in the store, and what they become on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moeinf.pull.layout import Fp8, Mxfp4, Quantised, Recast, Strided, View
from moeinf.pull.tensors import Tensors
from moeinf.types import DTYPE_BYTES, ExpertLayout, ExpertPiece, TensorSpec

DENSE = -1  # the target of a copy into the dense file; others are numbers of MoE layers


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a source shard."""

    shard: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes of a source shard that belong into one file of the store, as they are or recast."""

    source_offset: int
    num_bytes: int
    target: int  # DENSE or a MoE layer
    target_offset: int
    recast: Recast | None = None
    scales: Range | None = None  # which the recast needs besides, whole, wherever they lie

    @property
    def unit_bytes(self) -> int:
        """Source bytes that cannot be cut apart."""
        return self.recast.unit_bytes if self.recast else 1

    def part(self, start: int, num_bytes: int) -> Copy:
        """Of the source bytes from `start`; both numbers are multiples of unit_bytes."""
        moved = self.recast.stored_bytes(start) if self.recast else start
        recast = self.recast.part(start) if self.recast else None
        return Copy(self.source_offset + start, num_bytes, self.target, self.target_offset + moved, recast, self.scales)


def dense_copy(tensors: Tensors, source: str, spec: TensorSpec) -> Copy:
    """Of a whole tensor, into the dense file as `spec` says."""
    return _run(tensors, source, 0, math.prod(spec.shape), spec, DENSE, spec.offset_bytes)


def expert_copies(tensors: Tensors, source: str, pieces: Sequence[ExpertPiece], layout: ExpertLayout) -> Iterator[Copy]:
    """Of the pieces of a source tensor, into the blocks of their experts."""
    parts = {spec.name: spec for spec in layout.tensors}
    slabs: dict[tuple[int, int], list[ExpertPiece]] = {}  # of one expert: what lies between each other is read once
    for piece in pieces:
        spec = parts[piece.part]
        offset = piece.expert * layout.stride_bytes + spec.offset_bytes
        if tensors.format(source) == "mxfp4" or piece.strides or piece.filled:
            slabs.setdefault((piece.layer, piece.expert), []).append(piece)
        else:
            yield _run(tensors, source, piece.start_element, math.prod(spec.shape), spec, piece.layer, offset)
    for slab in slabs.values():
        shapes = [piece.filled or parts[piece.part].shape for piece in slab]
        views = [
            View(piece.start_element, shape, piece.strides_of(shape)) for piece, shape in zip(slab, shapes, strict=True)
        ]
        start, end = min(view.start for view in views), max(view.end for view in views)
        for piece, view in zip(slab, views, strict=True):
            spec = parts[piece.part]
            yield _strided(
                tensors,
                source,
                View(view.start - start, view.shape, view.strides),
                start,
                end,
                spec,
                piece.layer,
                piece.expert * layout.stride_bytes + spec.offset_bytes,
            )


def _run(tensors: Tensors, source: str, start: int, count: int, spec: TensorSpec, target: int, offset: int) -> Copy:
    """Of neighbouring elements."""
    entry = tensors.entry(source)
    if tensors.is_fp8(source):
        return _fp8_rows(tensors, source, start, count, spec, target, offset)
    dtype = tensors.dtype(source)
    width = DTYPE_BYTES[dtype]
    assert (start + count) * width <= entry.num_bytes, "the plan cuts beyond its tensor"
    recast = None if dtype == spec.dtype else Quantised(source, dtype, spec.dtype)
    return Copy(entry.offset_bytes + start * width, count * width, target, offset, recast)


def _fp8_rows(
    tensors: Tensors, source: str, start: int, count: int, spec: TensorSpec, target: int, offset: int
) -> Copy:
    entry, block = tensors.entry(source), tensors.fp8_block
    assert block is not None
    rows, cols = entry.shape[-2:]
    first_row = start // cols % rows
    assert start % cols == 0 and count % cols == 0 and first_row + count // cols <= rows, "a piece is rows of a matrix"
    recast = Fp8(source, cols, block, tensors.dtype(tensors.scales_of(source) or ""), spec.dtype, first_row)
    matrix = start // (rows * cols)  # where several lie in one tensor
    scales = _scales(tensors, source, matrix, math.prod(entry.shape[:-2]))
    return Copy(entry.offset_bytes + start, count, target, offset, recast, scales)


def _strided(
    tensors: Tensors, source: str, view: View, start: int, end: int, spec: TensorSpec, target: int, offset: int
) -> Copy:
    """Of elements that lie among others, from `start` to `end` of their tensor."""
    entry = tensors.entry(source)
    if tensors.format(source) == "mxfp4":
        num_weights = 2 * entry.num_bytes
        assert end <= num_weights, "the plan cuts beyond its tensor"
        assert view.shape == spec.shape, "blocks fill a part"
        share = _scales(tensors, source, start, num_weights, end - start)
        return Copy(
            entry.offset_bytes + start // 2,
            (end - start) // 2,
            target,
            offset,
            Mxfp4(source, view, (end - start) // 2),
            share,
        )
    dtype = tensors.dtype(source)
    width = DTYPE_BYTES[dtype]
    assert end * width <= entry.num_bytes and not tensors.is_fp8(source), "the plan cuts beyond its tensor"
    num_bytes = (end - start) * width
    return Copy(
        entry.offset_bytes + start * width,
        num_bytes,
        target,
        offset,
        Strided(source, dtype, spec.dtype, view, spec.shape, num_bytes),
    )


def _scales(tensors: Tensors, source: str, first: int, of: int, count: int = 1) -> Range:
    """The scales that belong to `count` of `of` equal shares of a tensor, from `first` on."""
    name = tensors.scales_of(source)
    assert name is not None
    entry = tensors.entry(name)
    return Range(tensors.shard(name), entry.offset_bytes + entry.num_bytes * first // of, entry.num_bytes * count // of)
