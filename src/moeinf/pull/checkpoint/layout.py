"""Layout transforms: what becomes of a checkpoint's bytes on their way into the store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from moeinf._native import quantise, repack_mxfp4
from moeinf.store.numbers import NOT_FINITE, first_not_finite
from moeinf.types import DTYPE_BYTES, FORMAT_BLOCKS, DType, Format

_ELEMENTS: dict[int, type[np.unsignedinteger]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}

_NO_SCALE = 255  # of MXFP4: an exponent that stands for no number
INTEGERS: Mapping[str, np.dtype[Any]] = {"I64": np.dtype(np.int64), "I32": np.dtype(np.int32)}  # as files spell them


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

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        """Returns the stored bytes. others: what else the move reads. Any thread may call it.

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

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        """Runs without the GIL."""
        blocks = memoryview(bytearray(self.stored_bytes(len(data))))
        quantise(self.format, data, self.source, len(data) // self.unit_bytes, FORMAT_BLOCKS[self.format][0], blocks)
        return blocks


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """Turns whole numbers into f32, which holds those that occur exactly."""

    tensor: str
    dtype: str  # one of INTEGERS
    values: int  # they are below this

    @property
    def unit_bytes(self) -> int:
        return INTEGERS[self.dtype].itemsize

    def stored_bytes(self, num_bytes: int) -> int:
        return num_bytes // self.unit_bytes * 4

    def part(self, start: int) -> WholeNumbers:
        return self

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        numbers = np.frombuffer(data, INTEGERS[self.dtype])
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.values:
            raise ValueError(f"has numbers from {numbers.min()} to {numbers.max()}, and must be below {self.values}")
        return numbers.astype(np.float32).view(np.uint8).data


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

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        found = self.view.of(data, DTYPE_BYTES[self.source])
        if self.view.shape != self.shape:
            found = _filled_up(found, self.view.shape, self.shape, DTYPE_BYTES[self.source])
        whole = Plain(self.tensor, self.source) if self.format == self.source else None
        return (whole or Quantised(self.tensor, self.source, self.format)).apply(found, others)


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

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        """others: the scales of all blocks of the run."""
        blocks = memoryview(bytearray(self.stored_bytes(len(data))))
        scales = self.view.in_steps_of(32).of(others[0])
        if _NO_SCALE in bytes(scales):
            raise ValueError(f"has a scale that is NaN; {NOT_FINITE}")
        repack_mxfp4(self.view.in_steps_of(2).of(data), scales, blocks)
        return blocks


@dataclass(frozen=True, slots=True)
class Plain:
    """Elements that are stored as they are, if they are numbers."""

    tensor: str
    source: DType
    first: int = 0  # which element of the tensor the run begins with

    @property
    def unit_bytes(self) -> int:
        return DTYPE_BYTES[self.source]

    def stored_bytes(self, num_bytes: int) -> int:
        return num_bytes

    def part(self, start: int) -> Plain:
        return replace(self, first=self.first + start // self.unit_bytes)

    def apply(self, data: memoryview, others: Sequence[memoryview]) -> memoryview:
        bad = first_not_finite(data, self.source, self.tensor)
        if bad >= 0:
            raise ValueError(f"element {self.first + bad} is NaN or infinite; {NOT_FINITE}")
        return data


def _filled_up(data: memoryview, shape: tuple[int, ...], wanted: tuple[int, ...], element_bytes: int) -> memoryview:
    """Pads elements of `shape` with zeros to the wanted shape."""
    elements = np.zeros(wanted, _ELEMENTS[element_bytes])
    elements[tuple(slice(count) for count in shape)] = np.frombuffer(data, elements.dtype).reshape(shape)
    return elements.reshape(-1).view(np.uint8).data
