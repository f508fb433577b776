"""GPTQ and AWQ: whole numbers packed into words, a matrix stored with its columns first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeinf.errors import UnsupportedModelError
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.integers import integer_words
from moeinf.pull.coded.scheme import (
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

_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # the nibble of a word that has each of its 8 columns


@dataclass(frozen=True, slots=True)
class Transposed(Scheme):
    """(code - zero point) * scale. Scales [groups, rows]; zero points [groups, rows], packed along the rows.

    GPTQ packs the codes [cols, rows] along the columns; its first version stores zero points less one, by words, so
    that what is added back carries from one field to the next. g_idx has the group of each column.
    AWQ packs the codes along the rows, 8 to a word in an order of its own.
    """

    method: str
    bits: int
    scale_dtype: str
    num_groups: int
    zeros_less_one: bool
    act_order: bool
    symmetric: bool

    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        taken = slice(rows.start, rows.stop)
        fields = 32 // self.bits
        in_words = slice(rows.start // fields, -(-rows.stop // fields))
        in_them = slice(rows.start % fields, rows.start % fields + len(rows))
        words = np.frombuffer(codes, np.uint32)
        zero_words = np.frombuffer(others[0], np.uint32).reshape(self.num_groups, -1)[:, in_words]
        if self.method == "awq":
            numbers = _ordered(unpacked(words.reshape(self.cols, -1)[:, in_words], self.bits))[:, in_them]
            zeros = _ordered(unpacked(zero_words, self.bits))[:, in_them]
        else:
            numbers = unpacked(words.reshape(-1, self.rows)[:, taken].T, self.bits).T
            zeros = self._zeros(zero_words, in_them)
        scales = floats(others[1], self.scale_dtype).reshape(self.num_groups, self.rows)[:, taken]
        groups = None
        neighbours = np.arange(self.cols) // (self.cols // self.num_groups)
        if len(others) > 2:
            found = np.frombuffer(others[2], np.int32).astype(np.int64)
            if found.min() < 0 or found.max() >= self.num_groups:
                raise ValueError(f"g_idx names a group that is none of {self.num_groups}")
            if self.act_order:
                groups = found
            elif (found != neighbours).any():
                raise ValueError("g_idx is in act-order, though config.json does not say desc_act")
        numbers = numbers - zeros[neighbours if groups is None else groups]
        return Decoded(np.ascontiguousarray(numbers.T), np.ascontiguousarray(scales.T), groups)

    def _zeros(self, words: npt.NDArray[np.uint32], fields: slice) -> Numbers:
        """Those of GPTQ. Where all of them are the middle, they show whether they were stored less one, which
        config.json has wrong in published checkpoints (vllm#38966).
        """
        one = sum(1 << shift for shift in range(0, 32, self.bits))
        said, other = (
            unpacked(words + np.uint32(one if less_one else 0), self.bits)[:, fields]
            for less_one in (self.zeros_less_one, not self.zeros_less_one)
        )
        if not self.symmetric:
            return said
        for zeros in (said, other):
            if (zeros == 1 << self.bits - 1).all():
                return zeros
        raise ValueError("has zero points of its own, though config.json says sym")


def _ordered(fields: Numbers) -> Numbers:
    return fields.reshape(len(fields), -1, 8)[:, :, _AWQ_ORDER].reshape(len(fields), -1)


def transposed(pool: Pool, name: str, shape: Shape, declared: Declared) -> Scheme:
    codes = codes_name(name)
    place = pool.found(codes)
    assert place is not None
    if declared.method not in ("gptq", "awq"):
        raise UnsupportedModelError(
            f"{place[0]}: tensor {codes!r} is of GPTQ or AWQ, and config.json does not say of which; "
            "pull the unquantised original"
        )
    if len(shape) != 2:
        raise UnsupportedModelError(f"tensor {codes!r} holds no single matrix; pull the unquantised original")
    rows, cols = shape
    gptq, bits = declared.method == "gptq", declared.bits
    size: int | None = declared.group_size
    if declared.own_bits and len(place[1].shape) == 2:  # modules may have others, which their tensors tell
        bits, size = (4 if place[1].shape[0] * 8 == cols else 8), None
    fields = 32 // bits
    if rows % fields or cols % fields:
        raise UnsupportedModelError(f"tensor {codes!r}: {rows} x {cols} weights are no whole words of {fields}")
    member(pool, name, codes, ("I32",), (cols // fields, rows) if gptq else (cols, rows // fields))
    base = codes.removesuffix("qweight")
    zeros, scales, order = f"{base}qzeros", f"{base}scales", f"{base}g_idx"
    count = groups_of(pool, name, scales, rows, cols, size, 0)
    member(pool, name, zeros, ("I32",), (count, rows // fields))
    scale = member(pool, name, scales, FLOATS, (count, rows))
    act_order = gptq and declared.act_order and count > 1
    others = [zeros, scales]
    if gptq and (act_order or pool.found(order)):
        member(pool, name, order, ("I32",), (cols,))
        others.append(order)
    symmetric = gptq and declared.symmetric
    words, nearest, exact = integer_words(bits, symmetric, cols // count, act_order)
    return Transposed(
        name, shape, codes, tuple(others), words, nearest, exact, plain_of(scale.dtype),
        declared.method, bits, scale.dtype, count, declared.zeros_less_one, act_order, symmetric,
    )  # fmt: skip


def codes_name(name: str) -> str:
    return name.removesuffix("weight") + "qweight"
