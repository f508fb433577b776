"""Layout transforms: what becomes of a checkpoint's bytes on their way into the store."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from moeinf._native import quantise, repack_mxfp4
from moeinf.types import DTYPE_BYTES, FORMAT_BLOCKS, DType, Float32Array, Format

_ELEMENTS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class LayoutTransform(Protocol):
    """Turns a run of source bytes into the bytes that are stored.

    Its units do not depend on each other: a run may be cut between any two of them, and its parts done in any order.
    """

    @property
    def tensor(self) -> str: ...  # its name in the source, for errors

    @property
    def unit_bytes(self) -> int: ...  # source bytes that cannot be cut apart

    def stored_bytes(self, num_bytes: int) -> int:
        """Returns how many bytes are stored for so many source bytes, a multiple of unit_bytes."""
        ...

    def part(self, start: int) -> LayoutTransform:
        """Returns the transform of the rest of the run, from source byte `start` on."""
        ...

    def apply(self, data: memoryview, scales: memoryview) -> memoryview:
        """Returns the stored bytes. scales: those of the move, where it has any. Any thread may call it.

        Raises ValueError for a weight that no block can hold.
        """
        ...


@dataclass(frozen=True, slots=True)
class Quantised:
    """Quantises elements of one type into blocks of a format."""

    tensor: str
    source: DType
    format: Format

    @property
    def unit_bytes(self) -> int:
        return FORMAT_BLOCKS[self.format][0] * DTYPE_BYTES[self.source]

    def stored_bytes(self, num_bytes: int) -> int:
        return num_bytes // self.unit_bytes * FORMAT_BLOCKS[self.format][1]

    def part(self, start: int) -> Quantised:
        return self

    def apply(self, data: memoryview, scales: memoryview) -> memoryview:
        """Runs without the GIL."""
        blocks = memoryview(bytearray(self.stored_bytes(len(data))))
        quantise(self.format, data, self.source, len(data) // self.unit_bytes, FORMAT_BLOCKS[self.format][0], blocks)
        return blocks


@dataclass(frozen=True, slots=True)
class View:
    """Elements within a run: element [r, c] lies at start + r * strides[0] + c * strides[1]."""

    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """Position behind the last element."""
        return self.start + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + 1

    def of(self, data: memoryview, element_bytes: int = 1) -> memoryview:
        """Copies the elements out of a run, one behind the other."""
        elements = np.frombuffer(data, _ELEMENTS[element_bytes])
        assert self.end <= len(elements)
        strides = [stride * element_bytes for stride in self.strides]
        found = np.lib.stride_tricks.as_strided(elements[self.start :], self.shape, strides, writeable=False)
        return np.ascontiguousarray(found).reshape(-1).view(np.uint8).data

    def in_steps_of(self, weights: int) -> View:
        """Returns the view in groups of so many neighbours. Its rows have a whole number of groups."""
        assert self.strides[-1] == 1 and not any(n % weights for n in (self.start, self.shape[-1], *self.strides[:-1]))
        return View(
            self.start // weights,
            (*self.shape[:-1], self.shape[-1] // weights),
            (*(stride // weights for stride in self.strides[:-1]), 1),
        )


@dataclass(frozen=True, slots=True)
class Strided:
    """Gathers elements that lie among others or in another order, and quantises them where the format asks for it.

    shape: that of the stored part. Where it is larger than the view's, the part is padded with zeros.
    """

    tensor: str
    source: DType
    format: Format
    view: View
    shape: tuple[int, ...]
    unit_bytes: int  # the whole run

    def stored_bytes(self, num_bytes: int) -> int:
        weights, block_bytes = FORMAT_BLOCKS[self.format]
        return math.prod(self.shape) // weights * block_bytes * (num_bytes > 0)

    def part(self, start: int) -> Strided:
        return self

    def apply(self, data: memoryview, scales: memoryview) -> memoryview:
        found = self.view.of(data, DTYPE_BYTES[self.source])
        if self.view.shape != self.shape:
            found = _filled_up(found, self.view.shape, self.shape, DTYPE_BYTES[self.source])
        return (
            found
            if self.format == self.source
            else Quantised(self.tensor, self.source, self.format).apply(found, scales)
        )


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """Joins the MXFP4 blocks of gpt-oss, 16 bytes of 32 weights, with the scales that lie apart. No bit changes."""

    tensor: str
    view: View  # of weights
    unit_bytes: int  # the whole run

    def stored_bytes(self, num_bytes: int) -> int:
        weights, block_bytes = FORMAT_BLOCKS["mxfp4"]
        return math.prod(self.view.shape) // weights * block_bytes * (num_bytes > 0)

    def part(self, start: int) -> Mxfp4:
        return self

    def apply(self, data: memoryview, scales: memoryview) -> memoryview:
        """scales: those of all blocks of the run."""
        blocks = memoryview(bytearray(self.stored_bytes(len(data))))
        repack_mxfp4(self.view.in_steps_of(2).of(data), self.view.in_steps_of(32).of(scales), blocks)
        return blocks


@dataclass(frozen=True, slots=True)
class Fp8:
    """Turns rows of a float8_e4m3 matrix into bf16, and quantises them where the format asks for it.

    Each weight is multiplied by the scale of its tile, [block[0], block[1]] (DeepSeek-V3, arXiv 2412.19437, 3.3). The
    last tiles are smaller where a matrix has no whole number of them.
    """

    tensor: str
    cols: int
    block: tuple[int, int]
    scale_dtype: DType
    format: Format
    first_row: int = 0  # row of the matrix with which the run begins

    @property
    def unit_bytes(self) -> int:
        return self.cols

    def stored_bytes(self, num_bytes: int) -> int:
        weights, block_bytes = FORMAT_BLOCKS[self.format]
        return num_bytes // weights * block_bytes

    def part(self, start: int) -> Fp8:
        return replace(self, first_row=self.first_row + start // self.cols)

    def apply(self, data: memoryview, scales: memoryview) -> memoryview:
        """scales: those of the whole matrix."""
        codes = np.frombuffer(data, np.uint8).reshape(-1, self.cols)
        factors = _floats(scales, self.scale_dtype).reshape(-1, -(-self.cols // self.block[1]))
        out = np.empty(codes.shape, np.uint16)
        at = 0
        while at < len(codes):  # the rows that share a row of tiles
            tile, done = divmod(self.first_row + at, self.block[0])
            end = min(at + self.block[0] - done, len(codes))
            weights = _E4M3[codes[at:end]]
            weights *= np.repeat(factors[tile], self.block[1])[: self.cols]
            out[at:end] = _to_bf16(weights)
            at = end
        found = out.reshape(-1).view(np.uint8).data
        return found if self.format == "bf16" else Quantised(self.tensor, "bf16", self.format).apply(found, scales)


def _filled_up(data: memoryview, shape: tuple[int, ...], wanted: tuple[int, ...], element_bytes: int) -> memoryview:
    """Pads elements of `shape` with zeros to the wanted shape."""
    elements = np.zeros(wanted, _ELEMENTS[element_bytes])
    elements[tuple(slice(count) for count in shape)] = np.frombuffer(data, elements.dtype).reshape(shape)
    return elements.reshape(-1).view(np.uint8).data


def _e4m3_values() -> Float32Array:
    """Values of float8_e4m3fn by code: a sign, 4 bits of exponent, 3 of fraction; no infinity, and all ones is NaN."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    values[codes & 127 == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(np.float32)


_E4M3 = _e4m3_values()
_E4M3.flags.writeable = False


def _to_bf16(values: Float32Array) -> npt.NDArray[np.uint16]:
    """Rounds to the nearest bf16, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _floats(data: memoryview, dtype: DType) -> Float32Array:
    if dtype == "bf16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, np.float16 if dtype == "f16" else np.float32).astype(np.float32)
