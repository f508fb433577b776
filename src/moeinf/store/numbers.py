"""Numbers as files hold them, without blocks: what they are in float32, and whether they are numbers at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from moeinf.types import DTYPE_BYTES, DType, Float32Array, Format

# The distance of neighbours is at most this share of a number, or, near zero, this.
SPACING: Mapping[DType, float] = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2.0**-23}
SMALLEST: Mapping[DType, float] = {"bf16": 2.0**-133, "f16": 2.0**-24, "f32": 2.0**-149}
NOT_FINITE = "no answer can be computed with it: fetch the checkpoint again, or take another one"  # in messages
_BITS: Mapping[int, np.dtype[Any]] = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
_EXPONENTS: Mapping[DType, int] = {"bf16": 0x7F80, "f16": 0x7C00, "f32": 0x7F800000}  # all ones: infinite, or no number
_PIECE_BYTES = 256 << 10  # stays in a core's cache while it is looked at


def plain_dtype(format: Format) -> DType | None:
    """The type of a format without blocks."""
    return format if format == "bf16" or format == "f16" or format == "f32" else None


def floats(data: memoryview, dtype: DType) -> Float32Array:
    if dtype == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    found: Float32Array = np.frombuffer(data, np.float16 if dtype == "f16" else np.float32).astype(np.float32)
    return found


def rounded(numbers: Float32Array, dtype: DType) -> Float32Array:
    """The numbers that a type holds in place of these, in float32: the nearest, of two the even one."""
    if dtype == "bf16":
        bits = numbers.view(np.uint32)
        return (bits + (0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        return numbers.astype(np.float16).astype(np.float32) if dtype == "f16" else numbers


def bf16_bits(numbers: Float32Array) -> npt.NDArray[np.uint16]:
    """As `rounded`, in the bytes that `floats` reads; NaN stays NaN."""
    return np.where(
        np.isnan(numbers), np.uint16(0x7FC0), (rounded(numbers, "bf16").view(np.uint32) >> 16).astype(np.uint16)
    )


def first_not_finite(data: memoryview, dtype: DType, name: str) -> int:
    """The first element of a tensor, or of a part of it, that is NaN or infinite; -1 where all are numbers.

    Of biases minus infinity is let pass: it says of an expert or a token that it is never chosen.
    """
    minus_too = not name.endswith("bias")
    exponent, width = _EXPONENTS[dtype], DTYPE_BYTES[dtype]
    bits = np.frombuffer(data, _BITS[width])
    step = _PIECE_BYTES // width
    without_sign = bits.dtype.type((1 << 8 * width - 1) - 1)
    minus = (1 << 8 * width - 1) | exponent
    for start in range(0, len(bits), step):
        piece = bits[start : start + step]
        magnitudes = piece & without_sign
        if magnitudes.max() < exponent:
            continue
        bad = magnitudes >= exponent
        found = np.flatnonzero(bad if minus_too else bad & (piece != minus))
        if len(found):
            return start + int(found[0])
    return -1
