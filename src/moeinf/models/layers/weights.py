"""Dense weights as they are stored: bytes with a format and a shape, and what is read from them without a device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from moeinf._native import dequantise, narrow_in_place
from moeinf.types import ByteArray, Float32Array, Format, IntArray, TensorSpec


class TensorBytes(Protocol):
    """One tensor on its way to a device: rows of whole blocks of `format`, one behind the other."""

    @property
    def format(self) -> Format: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def num_bytes(self) -> int: ...

    def pieces(self) -> Iterator[ByteArray]:
        """All of its bytes in order; a piece lasts until the next is asked for, from this tensor or another."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that lies in memory: `data` uint8, 1-D. It is TensorBytes too.

    rows: of a table that stays in its file, instead of data: numbers [n] -> the bytes of these rows [n * row bytes].
    Raises StoreError for rows that are damaged or cannot be read.
    scale: multiplies every weight of a matrix, for products alone.
    is_narrow: float32 of which `data` has the upper halves alone, as the others are zeros.
    """

    data: ByteArray
    format: Format
    shape: tuple[int, ...]
    rows: Callable[[IntArray], ByteArray] | None = None
    scale: float = 1.0
    is_narrow: bool = False

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    @property
    def held_as(self) -> str:
        """The format of `data`, as the native kernels name it."""
        return "narrow_f32" if self.is_narrow else self.format

    def pieces(self) -> Iterator[ByteArray]:
        yield self.data


def with_scales(tensors: Mapping[str, StoredTensor], scales: Mapping[str, float]) -> dict[str, StoredTensor]:
    """scales: of the matrices that have one."""
    return {**tensors, **{name: replace(tensors[name], scale=scale) for name, scale in scales.items()}}


def narrowed(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Holds matrices of float32 as the bfloat16 that they were made of, where they were: the products are the same.

    Half as much has to be read from memory for each of them. That is done in place, so float32 is gone from `tensors`;
    memory that cannot be written, or that two tensors share, stays as it is.
    """
    held = Counter(_address(tensor) for tensor in tensors.values())
    return {name: _narrow(each) if held[_address(each)] == 1 else each for name, each in tensors.items()}


def _narrow(tensor: StoredTensor) -> StoredTensor:
    data = tensor.data
    narrow = tensor.format == "f32" and len(tensor.shape) == 2 and data.flags.writeable and narrow_in_place(data)
    return replace(tensor, data=data[: len(data) // 2], is_narrow=True) if narrow else tensor


def as_bfloat16(tensor: StoredTensor) -> StoredTensor:
    """A matrix of float16 as the bfloat16 that it was made of, where it was; else itself."""
    if tensor.format != "f16" or len(tensor.shape) != 2:
        return tensor
    data: ByteArray = tensor.data.view(np.float16).astype(np.float32).view(np.uint8)
    return replace(tensor, data=data[: len(data) // 2].copy(), format="bf16") if narrow_in_place(data) else tensor


def _address(tensor: StoredTensor) -> int:
    address: int = tensor.data.__array_interface__["data"][0]
    return address


def in_memory(tensor: TensorBytes) -> StoredTensor:
    """A copy, of what is small."""
    data = np.empty(tensor.num_bytes, np.uint8)
    at = 0
    for piece in tensor.pieces():
        data[at : at + len(piece)] = piece
        at += len(piece)
    return StoredTensor(data, tensor.format, tensor.shape)


class Embedding:
    """Rows of a matrix of any format, looked up; its bytes may lie in memory or in a file."""

    def __init__(self, tensor: StoredTensor) -> None:
        num_rows, self._cols = tensor.shape
        self._format = tensor.held_as
        self._rows = tensor.rows or _rows_of(tensor.data.reshape(num_rows, -1))

    def __call__(self, ids: Sequence[int] | IntArray) -> Float32Array:
        """ids [tokens] -> [tokens, hidden]. Raises StoreError for rows that are damaged or cannot be read."""
        numbers = np.asarray(ids, np.int64)
        out = np.empty((len(numbers), self._cols), np.float32)
        dequantise(self._format, self._rows(numbers), *out.shape, out)
        return out


def _rows_of(table: ByteArray) -> Callable[[IntArray], ByteArray]:
    """table: [rows, bytes of a row]."""
    return lambda numbers: table[numbers].reshape(-1)


def in_file(spec: TensorSpec, rows: Callable[[IntArray], ByteArray]) -> StoredTensor:
    """A table that stays in its file."""
    return StoredTensor(np.frombuffer(b"", np.uint8), spec.dtype, spec.shape, rows)


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of matrices that lie one behind the other in one tensor."""
    return math.prod(shape[:-1]), shape[-1]


def transposed(tensor: StoredTensor) -> StoredTensor:
    """A copy of a matrix whose columns are its rows. It is not quantised."""
    rows, cols = tensor.shape
    numbers = tensor.data.reshape(rows, cols, -1)
    return replace(tensor, data=np.ascontiguousarray(numbers.swapaxes(0, 1)).reshape(-1), shape=(cols, rows))


def wider_heads(tensor: StoredTensor, heads: int, size: int) -> StoredTensor:
    """A copy of a matrix or a bias whose heads have further rows, of zeros, up to `size` each."""
    rows = tensor.data.reshape(heads, tensor.shape[0] // heads, -1)  # bytes; in every format zeros are zeros
    filled = np.zeros((heads, size, rows.shape[2]), np.uint8)
    filled[:, : rows.shape[1]] = rows
    return replace(tensor, data=filled.reshape(-1), shape=(heads * size, *tensor.shape[1:]))


def vector(tensor: StoredTensor) -> Float32Array:
    """A norm or a bias, in float32."""
    out = np.empty(math.prod(tensor.shape), np.float32)
    dequantise(tensor.held_as, tensor.data, 1, len(out), out.reshape(1, -1))
    return out
