"""Dense weights as they are stored: bytes with a format and a shape, and what is read from them without a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moeinf.types import ByteArray, Float32Array, Format, IntArray


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
    """A tensor that lies in memory, or in a mapped file: `data` uint8, 1-D. It is TensorBytes too.

    check_rows: takes the numbers of rows before they are looked up, and raises StoreError for one that is damaged.
    """

    data: ByteArray
    format: Format
    shape: tuple[int, ...]
    check_rows: Callable[[IntArray], None] | None = None

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    def pieces(self) -> Iterator[ByteArray]:
        yield self.data


def in_memory(tensor: TensorBytes) -> StoredTensor:
    """A copy, of what is small."""
    data = np.empty(tensor.num_bytes, np.uint8)
    at = 0
    for piece in tensor.pieces():
        data[at : at + len(piece)] = piece
        at += len(piece)
    return StoredTensor(data, tensor.format, tensor.shape)


class Embedding:
    """Rows of a matrix, looked up; its bytes may lie in memory or in a mapped file."""

    def __init__(self, tensor: StoredTensor) -> None:
        self._table = _halves_or_floats(tensor).reshape(tensor.shape)
        self._format = tensor.format
        self._check_rows = tensor.check_rows

    def __call__(self, ids: Sequence[int]) -> Float32Array:
        """ids [tokens] -> [tokens, hidden]. Raises StoreError for a row that is damaged."""
        rows = np.asarray(ids)
        if self._check_rows is not None:
            self._check_rows(rows)
        return _widened(self._table[rows], self._format)


def vector(tensor: StoredTensor) -> Float32Array:
    """A norm or a bias, in float32."""
    return np.ascontiguousarray(_widened(_halves_or_floats(tensor), tensor.format))


def _halves_or_floats(tensor: StoredTensor) -> Float32Array:
    kinds = {"bf16": np.uint16, "f16": np.float16, "f32": np.float32}
    assert tensor.format in kinds, "norms, biases and embeddings are never quantised"
    return tensor.data.view(kinds[tensor.format])


def _widened(values: Float32Array, format: Format) -> Float32Array:
    if format == "bf16":  # bfloat16 is the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
