"""Coded matrices as plain tensors, into which an adapter can be merged: in headers first, then in copies of shards."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeinf._native import dequantise
from moeinf.pull.checkpoint.conversion_plan import expert_names
from moeinf.pull.checkpoint.convert import converted
from moeinf.pull.checkpoint.layout import Mxfp4, View
from moeinf.pull.checkpoint.moves import DENSE, Move, coded_rows, left_out, mxfp4_blocks
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.source import Shards
from moeinf.store.files import errors_named, write_fully
from moeinf.store.format import STORE_DTYPES, Header, TensorEntry, raw_header
from moeinf.store.numbers import bf16_bits
from moeinf.types import DTYPE_BYTES, DType, ExpertPiece, TensorPlan, TensorSpec

_SPELT = {dtype: spelt for spelt, dtype in STORE_DTYPES.items()}
_BLOCK = 32  # weights of MXFP4


@dataclass(frozen=True, slots=True)
class DecodedMatrix:
    """One matrix, or a stack of them, that a checkpoint has in codes: what it is as a plain tensor."""

    entry: TensorEntry  # under the name that it has where it is not coded; its offset says nothing
    shard: str  # in which its codes lie, and where it takes their place
    parts: frozenset[str]  # that experts have of it, none of a dense one
    words: str  # what it is coded in, for messages
    wider: bool  # whether a store would have it in other blocks than a plain one
    taken: tuple[tuple[str, str], ...]  # shards and names of the tensors that are left out for it
    moves: tuple[tuple[str, Move], ...]  # by shard, to the bytes of the tensor, or of what must be zero


def decoded_matrices(tensors: Tensors, plan: TensorPlan) -> dict[str, DecodedMatrix]:
    """By their names as plain tensors. Raises CheckpointError and UnsupportedModelError for what cannot be decoded."""
    experts = expert_names(plan, tensors)
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in experts.items()}
    there = {name: shape for name, shape in shapes.items() if name in tensors and len(tensors.shares.get(name, ())) < 2}
    for name, shape in there.items():
        tensors.check_shape(name, shape)
    biases = set(tensors.zero_biases(plan.dense.keys()))
    found = []
    for name in there:
        pieces = experts[name][1] if name in experts else ()
        if tensors.scheme(name) is not None:
            found.append(_of_scheme(tensors, name, biases, pieces))
        elif tensors.is_mxfp4(name):
            found += _of_blocks(tensors, plan, name, pieces)
    return {each.entry.name: each for each in found}


def with_companions(wanted: Collection[str], found: Mapping[str, DecodedMatrix]) -> list[DecodedMatrix]:
    """Those of these names, and of experts what has to have the same form: a part of all experts is of one."""
    parts = {part for name, each in found.items() if name in wanted and each.wider for part in each.parts}
    return [each for name, each in found.items() if name in wanted or (each.wider and parts & each.parts)]


def in_their_place(
    shards: Shards, headers: Mapping[str, Header], decoded: Iterable[DecodedMatrix]
) -> tuple[Shards, Mapping[str, Header]]:
    """The checkpoint that has plain tensors in place of what is coded; of shards that change all offsets are others."""
    entries = {shard: dict(header) for shard, header in headers.items()}
    weight_map = None if shards.weight_map is None else dict(shards.weight_map)
    changed = set[str]()
    for each in decoded:
        for shard, name in each.taken:
            del entries[shard][name]
            changed.add(shard)
            if weight_map is not None:
                weight_map.pop(name, None)
        entries[each.shard][each.entry.name] = each.entry
        if weight_map is not None:
            weight_map[each.entry.name] = each.shard
    for shard in changed:
        _, places = raw_header(entries[shard])
        entries[shard] = {name: replace(entry, offset_bytes=places[name]) for name, entry in entries[shard].items()}
    return Shards(shards.files, weight_map), entries


def read_beside(shard: str, decoded: Iterable[DecodedMatrix]) -> list[str]:
    """The shards in which scales of its codes lie."""
    moves = (move for each in decoded for source, move in each.moves if source == shard)
    return sorted({place.shard for move in moves for place in move.others} - {shard})


def write_decoded(
    path: Path, shard: str, before: Header, after: Header, decoded: Iterable[DecodedMatrix], paths: Mapping[str, Path]
) -> None:
    """Writes the copy of a shard that has the header `after`. paths: of that shard, and of those that it is read with.

    Raises CheckpointError, StoreError, DiskSpaceError.
    """
    head, places = raw_header(after)
    moves = [
        Move(entry.offset_bytes, entry.num_bytes, DENSE, places[name])
        for name, entry in before.items()
        if name in after and after[name].dtype == entry.dtype
    ]
    for each in decoded:
        start = places.get(each.entry.name, 0)
        own = (move for source, move in each.moves if source == shard)
        moves += [replace(move, target_offset=start + move.target_offset) for move in own]
    with errors_named(path):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        with errors_named(path):
            write_fully(fd, head, 0, path)
        for piece, data in converted(paths[shard], sorted(moves, key=lambda move: move.source_offset), paths):
            with errors_named(path):
                write_fully(fd, data, piece.target_offset, path)
    finally:
        os.close(fd)


def line_of(decoded: Sequence[DecodedMatrix]) -> str:
    """What a user is told of those that take more room than they did; "" where there are none."""
    counts = Counter((each.words, STORE_DTYPES[each.entry.dtype]) for each in decoded if each.wider)
    kinds = ", ".join(f"{count} tensors from {words} in {dtype}" for (words, dtype), count in sorted(counts.items()))
    return f"decoded for the adapter, as the sums have no place in their blocks: {kinds}" if kinds else ""


def _of_scheme(tensors: Tensors, name: str, biases: Collection[str], pieces: Sequence[ExpertPiece]) -> DecodedMatrix:
    scheme = tensors.scheme(name)
    assert scheme is not None
    matrix_elements, width = scheme.rows * scheme.cols, DTYPE_BYTES[scheme.plain]
    count = math.prod(scheme.shape[:-2])
    spec = TensorSpec(name, scheme.plain, scheme.shape, 0, 0)
    shard = tensors.shard(name)
    moves = [
        (shard, coded_rows(tensors, scheme, range(at, at + matrix_elements), spec, DENSE, at * width))
        for at in range(0, count * matrix_elements, matrix_elements)
    ]
    taken = [
        (tensors.shard_of(each), tensors.stored_name(each)) for each in dict.fromkeys((scheme.codes, *scheme.others))
    ]
    bias = scheme.codes.removesuffix("qweight") + "bias"
    if bias in biases:
        moves.append((tensors.shard_of(bias), left_out(tensors, bias)))
        taken.append((tensors.shard_of(bias), tensors.stored_name(bias)))
    entry = _entry(_stored_name(tensors, scheme.codes, name), scheme.plain, scheme.shape)
    parts = frozenset(piece.part for piece in pieces)
    return DecodedMatrix(entry, shard, parts, scheme.words, scheme.kept != scheme.plain, tuple(taken), tuple(moves))


def _of_blocks(tensors: Tensors, plan: TensorPlan, name: str, pieces: Sequence[ExpertPiece]) -> Iterator[DecodedMatrix]:
    """Of MXFP4 as gpt-oss has it, where the plan knows a plain tensor of the same pieces: all of them, or none are."""
    scales, shard = tensors.scales_of(name), tensors.shard(name)
    for layout in plan.experts:
        for other, (shape, theirs) in layout.items():
            if other in plan.scales or list(map(_which, theirs)) != list(map(_which, pieces)):
                continue
            moves = tuple((shard, move) for move in _block_moves(tensors, plan, name, pieces, theirs))
            taken = ((shard, tensors.stored_name(name)), (tensors.shard(scales), tensors.stored_name(scales)))
            entry = _entry(_stored_name(tensors, name, other), "bf16", shape)
            yield DecodedMatrix(entry, shard, frozenset(plan.parts), "MXFP4", True, taken, moves)
            return


def _which(piece: ExpertPiece) -> tuple[int, int, str]:
    return piece.layer, piece.expert, piece.part


def _block_moves(
    tensors: Tensors, plan: TensorPlan, name: str, pieces: Sequence[ExpertPiece], theirs: Sequence[ExpertPiece]
) -> Iterator[Move]:
    """One for each expert, whose pieces lie between each other."""
    by_expert: dict[int, list[tuple[View, View]]] = {}
    for piece, other in zip(pieces, theirs, strict=True):
        shape = plan.parts[piece.part]
        views = (View(each.start_element, shape, each.strides_of(shape)) for each in (piece, other))
        by_expert.setdefault(piece.expert, []).append((next(views), next(views)))
    for pairs in by_expert.values():
        first, start = (min(pair[side].start for pair in pairs) for side in (0, 1))
        count = sum(math.prod(view.shape) for view, _ in pairs)
        blocks = TensorSpec(name, "mxfp4", (count // _BLOCK, _BLOCK), 0, 0)
        whole = View(0, blocks.shape, (_BLOCK, 1))
        move = mxfp4_blocks(tensors, name, range(first, first + count), whole, blocks, DENSE, 2 * start)
        assert isinstance(move.transform, Mxfp4), "what blocks are moved by"
        placed = tuple((replace(a, start=a.start - first), replace(b, start=b.start - start)) for a, b in pairs)
        yield replace(move, transform=_FromBlocks(move.transform, placed))


@dataclass(frozen=True, slots=True)
class _FromBlocks:
    """Weights of blocks of MXFP4 in bf16, which holds each of them, in another order."""

    blocks: Mxfp4
    pairs: tuple[tuple[View, View], ...]  # where weights lie, and where they belong: all that there are

    @property
    def tensor(self) -> str:
        return self.blocks.tensor

    @property
    def unit_bytes(self) -> int:
        return self.blocks.unit_bytes

    def stored_bytes(self, num_bytes: int) -> int:
        return 4 * num_bytes

    def part(self, start: int) -> _FromBlocks:
        return self

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        found = np.empty(self.blocks.view.shape, np.float32)
        dequantise("mxfp4", self.blocks.apply(data, others), len(found), _BLOCK, found)
        weights = bf16_bits(found.reshape(-1))
        out = np.empty_like(weights)
        for source, target in self.pairs:
            _seen(out, target)[...] = _seen(weights, source)
        return out.view(np.uint8).data


def _seen(elements: npt.NDArray[np.uint16], view: View) -> npt.NDArray[np.uint16]:
    return np.lib.stride_tricks.as_strided(elements[view.start :], view.shape, [2 * step for step in view.strides])


def _entry(name: str, dtype: DType, shape: tuple[int, ...]) -> TensorEntry:
    return TensorEntry(name, _SPELT[dtype], shape, 0, math.prod(shape) * DTYPE_BYTES[dtype])


def _stored_name(tensors: Tensors, codes: str, name: str) -> str:
    """What the checkpoint would call a matrix of the plan, by what it calls the tensor of its codes."""
    begins = next(
        (at for at, (a, b) in enumerate(zip(codes, name, strict=False)) if a != b), min(len(codes), len(name))
    )
    stored = tensors.stored_name(codes)
    return stored[: len(stored) - len(codes) + begins] + name[begins:] if stored.endswith(codes[begins:]) else name
