"""Moves: which bytes of a checkpoint go where in the store, and by which transform."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from moeinf.errors import UnsupportedModelError
from moeinf.pull.checkpoint.joined import Joined, Place
from moeinf.pull.checkpoint.layout import LayoutTransform, Mxfp4, Plain, Quantised, Strided, View, WholeNumbers
from moeinf.pull.checkpoint.left_out import Follows, LeftOut
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.coded.blocks import CodedRows
from moeinf.pull.coded.scheme import Scheme
from moeinf.store.format import STORE_DTYPES
from moeinf.types import DTYPE_BYTES, Expected, ExpertLayout, ExpertPiece, RowsOf, TensorSpec, format_bytes

# Targets of moves into the dense file, and into that of layers that predict further tokens; others are MoE layers.
DENSE, AHEAD, VISION = -1, -2, -3


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a source shard."""

    shard: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes of a source shard that belong into one file of the store, as they are or transform."""

    source_offset: int
    num_bytes: int
    target: int  # DENSE, AHEAD, VISION or a MoE layer
    target_offset: int
    transform: LayoutTransform | None = None
    others: tuple[Range, ...] = ()  # what else the transform needs, wherever it lies

    @property
    def unit_bytes(self) -> int:
        """Source bytes that cannot be cut apart."""
        return self.transform.unit_bytes if self.transform else 1

    def part(self, start: int, num_bytes: int) -> Move:
        """Returns the move of num_bytes source bytes from `start` on; both are multiples of unit_bytes."""
        return replace(
            self,
            source_offset=self.source_offset + start,
            num_bytes=num_bytes,
            target_offset=self.target_offset + (self.transform.stored_bytes(start) if self.transform else start),
            transform=self.transform.part(start) if self.transform else None,
            others=self._others(start, num_bytes),
        )

    def _others(self, start: int, num_bytes: int) -> tuple[Range, ...]:
        """As a whole, or of rows that have their own the share of these."""
        if not isinstance(self.transform, CodedRows) or not self.transform.scheme.others_by_rows:
            return self.others
        whole = self.num_bytes
        return tuple(
            replace(
                each,
                offset=each.offset + each.num_bytes * start // whole,
                num_bytes=each.num_bytes * num_bytes // whole,
            )
            for each in self.others
        )


def dense_move(tensors: Tensors, source: str, spec: TensorSpec) -> Move:
    """Moves a whole tensor into the dense file, to the place that `spec` names."""
    values = tensors.values_of(source) if tensors.scheme(source) is None else None
    if values:
        entry = tensors.entry(source)
        transform = WholeNumbers(source, entry.dtype, values)
        return Move(entry.offset_bytes, entry.num_bytes, DENSE, spec.offset_bytes, transform)
    return _run(tensors, source, range(math.prod(spec.shape)), spec, DENSE, spec.offset_bytes)


def rows_moves(tensors: Tensors, source: RowsOf, spec: TensorSpec) -> Iterator[Move]:
    """Moves rows of another matrix, which are all of this one, into the dense file."""
    cols, before = spec.shape[-1], 0
    for rows in source.rows:
        offset = spec.offset_bytes + format_bytes(spec.dtype, (before, cols))
        yield _run(tensors, source.name, range(rows.start * cols, rows.stop * cols), spec, DENSE, offset)
        before += len(rows)


def expert_moves(tensors: Tensors, source: str, pieces: Sequence[ExpertPiece], layout: ExpertLayout) -> Iterator[Move]:
    """Moves the pieces of a source tensor into the blocks of their experts."""
    parts = {spec.name: spec for spec in layout.tensors}
    slabs: dict[tuple[int, int], list[ExpertPiece]] = {}  # pieces of one expert that lie between each other: one read
    for piece in pieces:
        spec = parts[piece.part]
        if tensors.is_mxfp4(source) or piece.strides or piece.filled:
            slabs.setdefault((piece.layer, piece.expert), []).append(piece)
        else:
            span = range(piece.start_element, piece.start_element + math.prod(spec.shape))
            yield _run(tensors, source, span, spec, piece.layer, piece.expert * layout.stride_bytes + spec.offset_bytes)
    for (layer, expert), slab in slabs.items():
        shapes = [piece.filled or parts[piece.part].shape for piece in slab]
        views = [
            View(piece.start_element, shape, piece.strides_of(shape)) for piece, shape in zip(slab, shapes, strict=True)
        ]
        span = range(min(view.start for view in views), max(view.end for view in views))
        for piece, view in zip(slab, views, strict=True):
            spec = parts[piece.part]
            offset = expert * layout.stride_bytes + spec.offset_bytes
            yield _strided(tensors, source, span, replace(view, start=view.start - span.start), spec, layer, offset)


def joined_move(tensors: Tensors, sources: Sequence[tuple[str, ExpertPiece]], layout: ExpertLayout) -> Move:
    """Moves pieces of several sources into the part that they make, which is read with the first of them."""
    (first, piece), spec = sources[0], next(s for s in layout.tensors if s.name == sources[0][1].part)
    ranges, places, dtype = list[Range](), list[Place](), tensors.dtype(first)
    for source, each in sources:
        if tensors.scheme(source) is not None or tensors.is_mxfp4(source):
            raise UnsupportedModelError(
                f"{tensors.shard(source)}: tensor {source!r} is quantised ({tensors.dtype_text(source)}), and is a "
                "share of a matrix; pull the unquantised original"
            )
        assert each.at is not None and each.filled is not None and each.strides is None, "a share is said whole"
        (rows, cols), width, entry = each.filled, DTYPE_BYTES[dtype], tensors.entry(source)
        assert (each.start_element + rows * cols) * width <= entry.num_bytes, "the plan cuts beyond its tensor"
        start = entry.offset_bytes + each.start_element * width
        ranges.append(Range(tensors.shard(source), start, rows * cols * width))
        places.append(Place(*each.at, (rows, cols), each.times))
    rows, cols = spec.shape
    own, *others = ranges
    transform = Joined(first, dtype, spec.dtype, (rows, cols), tuple(places), own.num_bytes)
    offset = piece.expert * layout.stride_bytes + spec.offset_bytes
    return Move(own.offset, own.num_bytes, piece.layer, offset, transform, tuple(others))


def kept_move(tensors: Tensors, name: str, target: int, place: int) -> Move:
    """Moves a tensor as it is, whatever its dtype, into a file of such tensors."""
    entry = tensors.entry(name)
    seen = Plain(name, STORE_DTYPES[entry.dtype]) if target == VISION else None
    return Move(entry.offset_bytes, entry.num_bytes, target, place, seen)


def left_out(tensors: Tensors, name: str) -> Move:
    """Moves nothing, but sees to it that the tensor is zero."""
    entry = tensors.entry(name)
    return Move(entry.offset_bytes, entry.num_bytes, DENSE, 0, LeftOut(name, entry.num_bytes))


def followed(tensors: Tensors, name: str, choices: Sequence[Expected]) -> Move:
    """Moves nothing, but sees to it that the tensor has numbers that follow from config.json."""
    entry = tensors.entry(name)
    return Move(
        entry.offset_bytes, entry.num_bytes, DENSE, 0, Follows(name, entry.dtype, tuple(choices), entry.num_bytes)
    )


def _run(tensors: Tensors, source: str, span: range, spec: TensorSpec, target: int, offset: int) -> Move:
    """Moves neighbouring elements of a tensor."""
    scheme = tensors.scheme(source)
    if scheme is not None:
        return coded_rows(tensors, scheme, span, spec, target, offset)
    entry = tensors.entry(source)
    dtype = tensors.dtype(source)
    width = DTYPE_BYTES[dtype]
    assert span.stop * width <= entry.num_bytes, "the plan cuts beyond its tensor"
    plain = Plain(source, dtype, span.start) if dtype == spec.dtype else None
    transform = plain or Quantised(source, dtype, spec.dtype)
    return Move(entry.offset_bytes + span.start * width, len(span) * width, target, offset, transform)


def coded_rows(tensors: Tensors, scheme: Scheme, span: range, spec: TensorSpec, target: int, offset: int) -> Move:
    """Moves whole rows of a matrix that is made of several tensors."""
    entry, rows, cols = tensors.entry(scheme.codes), scheme.rows, scheme.cols
    first_row, count = span.start // cols % rows, len(span) // cols
    assert span.start % cols == 0 and len(span) % cols == 0 and first_row + count <= rows, "a piece is rows of a matrix"
    matrix, matrices = span.start // (rows * cols), math.prod(scheme.shape[:-2])  # where several lie in one tensor
    unit_bytes = entry.num_bytes // matrices // (rows if scheme.by_rows else 1)
    transform = CodedRows(scheme, spec.dtype, range(first_row, first_row + count), unit_bytes)
    others = tuple(_share(tensors, name, matrix, matrices) for name in scheme.others)
    start = entry.offset_bytes + entry.num_bytes * matrix // matrices
    if not scheme.by_rows:
        return Move(start, unit_bytes, target, offset, transform, others)
    whole = Move(start, rows * unit_bytes, target, offset, replace(transform, rows=range(rows)), others)
    return replace(whole.part(first_row * unit_bytes, count * unit_bytes), target_offset=offset, transform=transform)


def _strided(
    tensors: Tensors, source: str, span: range, view: View, spec: TensorSpec, target: int, offset: int
) -> Move:
    """Moves those elements of a span that a view of it selects."""
    scheme = tensors.scheme(source)
    if scheme is not None:
        turned = scheme.turned() if view.strides == (1, scheme.cols) and view.shape == spec.shape else None
        if turned is None:
            raise UnsupportedModelError(
                f"{tensors.shard(source)}: tensor {scheme.codes!r} is quantised ({scheme.words}), and has to be cut "
                "between columns; pull the unquantised original"
            )
        matrix, column = divmod(span.start + view.start, scheme.rows * scheme.cols)
        first = (matrix * turned.rows + column) * turned.cols
        return coded_rows(tensors, turned, range(first, first + math.prod(spec.shape)), spec, target, offset)
    if tensors.is_mxfp4(source):
        return mxfp4_blocks(tensors, source, span, view, spec, target, offset)
    entry, dtype = tensors.entry(source), tensors.dtype(source)
    width = DTYPE_BYTES[dtype]
    assert span.stop * width <= entry.num_bytes, "the plan cuts beyond its tensor"
    num_bytes = len(span) * width
    transform = Strided(source, dtype, spec.dtype, view, spec.shape, num_bytes)
    return Move(entry.offset_bytes + span.start * width, num_bytes, target, offset, transform)


def mxfp4_blocks(
    tensors: Tensors, source: str, span: range, view: View, spec: TensorSpec, target: int, offset: int
) -> Move:
    """Moves MXFP4 blocks, in which a byte holds two weights, together with their scales."""
    entry = tensors.entry(source)
    num_weights, num_bytes = 2 * entry.num_bytes, len(span) // 2
    assert span.stop <= num_weights, "the plan cuts beyond its tensor"
    assert view.shape == spec.shape, "blocks fill a part"
    scales = _share(tensors, tensors.scales_of(source), span.start, num_weights, len(span))
    transform = Mxfp4(source, view, num_bytes)
    return Move(entry.offset_bytes + span.start // 2, num_bytes, target, offset, transform, (scales,))


def _share(tensors: Tensors, name: str, first: int, of: int, count: int = 1) -> Range:
    """Returns where `count` of `of` equal shares of a tensor lie, from share `first` on."""
    entry = tensors.entry(name)
    return Range(tensors.shard(name), entry.offset_bytes + entry.num_bytes * first // of, entry.num_bytes * count // of)
