"""compressed-tensors: whole numbers of 4 or 8 bits, row by row: pack-quantized and int-quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.scheme import (
    BLOCK,
    FLOATS,
    Decoded,
    Numbers,
    Pool,
    Scheme,
    Shape,
    floats,
    groups_of,
    member,
    plain_of,
    unpacked,
)
from moeinf.types import Format


def integer_words(bits: int, symmetric: bool, size: int, act_order: bool) -> tuple[str, Format, bool]:
    """Returns what such weights are called, the blocks for them, and whether these hold them exactly."""
    words = f"{'symmetric int' if symmetric else 'int'}{bits}{'' if symmetric else ' with zero points'}"
    if act_order:
        return f"{words} in act-order", "q8_0", False
    if size % BLOCK:
        return f"{words} in groups of {size}", "q8_0", False
    if bits == 4:
        return words, "q4_0" if symmetric else "q5_0", True
    return words, "q8_0", symmetric


@dataclass(frozen=True, slots=True)
class Integers(Scheme):
    """(code - zero point) * scale, each of them of its group of columns."""

    bits: int
    packed: bool  # into words of 32 bits with an offset; else each code is a byte
    scale_dtype: str
    num_groups: int
    zero_points: str  # "" for none; "I32": packed along the rows; "I8"
    act_order: bool
    symmetric: bool

    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        taken = slice(rows.start, rows.stop)
        scales = np.broadcast_to(floats(others[0], self.scale_dtype).reshape(-1, self.num_groups), self._grid)[taken]
        numbers = self._codes(codes, taken)
        rest = list(others[1:])
        groups = None
        if self.zero_points:
            zeros = self._zeros(rest.pop(0), rows)
            if self.symmetric and zeros.any():
                raise ValueError("has zero points, which config.json calls symmetric")
        if self.act_order:
            groups = np.frombuffer(rest.pop(0), np.int32).astype(np.int64)
            if groups.min() == groups.max() == -1:  # as it is made, before anything is quantised in that order
                groups = np.arange(self.cols) // (self.cols // self.num_groups)
            if groups.min() < 0 or groups.max() >= self.num_groups:
                raise ValueError(f"weight_g_idx names a group that is none of {self.num_groups}")
        if rest:
            shape = np.frombuffer(rest[0], np.int64 if len(rest[0]) == 16 else np.int32)
            if tuple(shape) != self.shape:
                raise ValueError(f"weight_shape is {shape.tolist()}, config.json implies {list(self.shape)}")
        if self.zero_points:
            size = self.cols // self.num_groups
            numbers = numbers - (zeros[:, groups] if groups is not None else np.repeat(zeros, size, axis=1))
        return Decoded(numbers, scales, groups)

    @property
    def _grid(self) -> Shape:
        return self.rows, self.num_groups

    def _codes(self, codes: memoryview, rows: slice) -> Numbers:
        if not self.packed:
            return np.frombuffer(codes, np.int8).reshape(self.rows, self.cols)[rows].astype(np.int16)
        words = np.frombuffer(codes, np.uint32).reshape(self.rows, -1)[rows]
        numbers: Numbers = unpacked(words, self.bits)[:, : self.cols] - np.int16(1 << self.bits - 1)
        return numbers

    def _zeros(self, data: memoryview, rows: range) -> Numbers:
        if self.zero_points == "I8":
            zeros = np.frombuffer(data, np.int8).reshape(-1, self.num_groups)
            return np.broadcast_to(zeros, self._grid)[rows.start : rows.stop].astype(np.int16)
        words = np.frombuffer(data, np.uint32).reshape(-1, self.num_groups)
        share, each = np.divmod(np.arange(rows.start, rows.stop), 32 // self.bits)
        fields = words[share] >> (each * self.bits).astype(np.uint32)[:, None] & np.uint32((1 << self.bits) - 1)
        numbers: Numbers = fields.astype(np.int16) - np.int16(1 << self.bits - 1)
        return numbers


def integers(pool: Pool, name: str, shape: Shape, declared: Declared) -> Scheme:
    """name + "_packed" in words, or `name` itself in bytes."""
    place = pool.found(name + "_packed")
    codes = name + "_packed" if place else name
    if len(shape) != 2:
        raise UnsupportedModelError(f"tensor {codes!r} holds no single matrix; pull the unquantised original")
    rows, cols = shape
    args = declared.args_of(name)
    bits = args.bits if args else 8
    if place:
        if args is None:  # what the words have room for
            bits = 4 if len(place[1].shape) == 2 and place[1].shape[1] <= -(-cols // 8) else 8
        member(pool, name, codes, ("I32",), (rows, -(-cols * bits // 32)))
    else:
        bits = 8
        member(pool, name, codes, ("I8",), shape)
    size = args.group_size if args else None
    scales = name + "_scale"
    count = groups_of(pool, name, scales, rows, cols, size, 1)
    grids: list[Shape] = [(rows, count)] + ([(rows,), (1,), (1, 1), ()] if count == 1 else [])
    scale = member(pool, name, scales, FLOATS, *grids)
    others, zeros = [scales], ""
    points = pool.found(name + "_zero_point")
    symmetric = args.symmetric if args else points is None
    if points or not symmetric:
        in_words = bool(place) and (points is None or points[1].dtype != "I8")
        zeros = "I32" if in_words else "I8"
        member(pool, name, name + "_zero_point", (zeros,), *([(-(-rows * bits // 32), count)] if in_words else grids))
        others.append(name + "_zero_point")
    act_order = pool.found(name + "_g_idx") is not None
    if act_order:
        member(pool, name, name + "_g_idx", ("I32",), (cols,))
        others.append(name + "_g_idx")
    if pool.found(name + "_shape"):
        member(pool, name, name + "_shape", ("I64", "I32"), (2,))
        others.append(name + "_shape")
    words, nearest, exact = integer_words(bits, symmetric, cols // count, act_order)
    plain = plain_of(scale.dtype)
    return Integers(
        name, shape, codes, tuple(others), words, nearest, exact, plain,
        bits, bool(place), scale.dtype, count, zeros, act_order, symmetric,
    )  # fmt: skip
