"""Floats of 4 bits (E2M1) with a scale for 16 or 32 of them: NVFP4 and MXFP4, as linear layers are shipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.scheme import E2M1, POWERS, Decoded, Pool, Scheme, Shape, floats, member, powers


@dataclass(frozen=True, slots=True)
class Float4(Scheme):
    """Codes of two weights to a byte, the first in the low half.

    NVFP4: scales in float8_e4m3, and one in f32 for the whole matrix, which compressed-tensors divides by and modelopt
    multiplies with. MXFP4: the scale is a power of two, of which there is the exponent.
    """

    size: int  # of a group
    divides: bool

    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        taken = slice(rows.start, rows.stop)
        pairs = np.frombuffer(codes, np.uint8).reshape(self.rows, -1)[taken]
        values = np.empty((len(rows), self.cols), np.float32)
        values[:, ::2], values[:, 1::2] = E2M1[pairs & 15], E2M1[pairs >> 4]
        if len(others) == 1:
            exponents = np.frombuffer(others[0], np.uint8).reshape(self.rows, -1)[taken]
            return Decoded(values, powers(exponents))
        factor = np.frombuffer(others[1], np.float32)[0]
        if not np.isfinite(factor) or factor <= 0:
            raise ValueError(f"has {factor} as the scale of all of it")
        scales = floats(others[0], "F8_E4M3").reshape(self.rows, -1)[taken]
        return Decoded(values, scales / factor if self.divides else scales * factor)


def float4(pool: Pool, name: str, shape: Shape, declared: Declared) -> Scheme:
    """name + "_packed" of compressed-tensors, or `name` itself of modelopt and, as I8, of DeepSeek-V4."""
    divides = pool.found(name + "_packed") is not None
    codes = name + "_packed" if divides else name
    if len(shape) != 2:
        raise UnsupportedModelError(f"tensor {codes!r} holds no single matrix; pull the unquantised original")
    rows, cols = shape
    scales, whole = name + "_scale", name + ("_global_scale" if divides else "_scale_2")
    place = pool.found(scales)
    size = 32 if place and place[1].dtype in ("U8", POWERS) else 16
    if cols % size:
        raise UnsupportedModelError(f"tensor {codes!r}: rows of {cols} are no whole number of groups of {size}")
    member(pool, name, codes, ("U8", "I8"), (rows, cols // 2))
    member(pool, name, scales, ("U8", POWERS) if size == 32 else ("F8_E4M3",), (rows, cols // size))
    if size == 32:
        return Float4(name, shape, codes, (scales,), "MXFP4", "mxfp4", True, "bf16", size, divides)
    member(pool, name, whole, ("F32",), (1,), ())
    words = "NVFP4, whose scale of a whole matrix the store has no place for,"
    return Float4(name, shape, codes, (scales, whole), words, "q8_0", False, "bf16", size, divides)
