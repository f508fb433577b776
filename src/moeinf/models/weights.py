"""The dense weights of a model, in the forms in which layers use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from moeinf import _native
from moeinf.types import ByteArray, DType, Float32Array, Format, IntArray


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The bytes of one tensor: `data` uint8, 1-D, rows of whole blocks of `format`, one behind the other."""

    data: ByteArray
    format: Format
    shape: tuple[int, ...]


class Linear:
    """A weight matrix [rows, cols], multiplied by the native kernels in the format in which it is stored."""

    def __init__(self, kernels: _native.Kernels, tensor: StoredTensor) -> None:
        rows, cols = tensor.shape
        self.native = _native.Matrix(tensor.data, tensor.format, rows, cols)
        self._kernels = kernels
        self._rows = rows

    def __call__(self, x: Float32Array) -> Float32Array:
        """x [tokens, cols] -> [tokens, rows]."""
        y = np.empty((len(x), self._rows), np.float32)
        self._kernels.linear(x, self.native, y)
        return y


class Embedding:
    """Rows of a matrix, looked up; its bytes may lie in memory or in a mapped file."""

    def __init__(self, tensor: StoredTensor) -> None:
        self._table = _halves_or_floats(tensor).reshape(tensor.shape)
        self._format = tensor.format

    def __call__(self, ids: IntArray) -> Float32Array:
        """ids [tokens] -> [tokens, hidden]."""
        return _widened(self._table[ids], self._format)


class Weights:
    """Dense tensors by name, checked by the tensor plan (KeyError for others), and the dtype of keys and values."""

    def __init__(self, kernels: _native.Kernels, tensors: Mapping[str, StoredTensor], dtype: DType) -> None:
        self.kernels = kernels
        self.dtype: DType = dtype
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def linear(self, name: str) -> Linear:
        return Linear(self.kernels, self._tensors[name])

    def vector(self, name: str) -> Float32Array:
        """A norm or a bias, in float32."""
        tensor = self._tensors[name]
        return np.ascontiguousarray(_widened(_halves_or_floats(tensor), tensor.format))

    def optional_vector(self, name: str) -> Float32Array | None:
        return self.vector(name) if name in self else None

    def embedding(self, name: str) -> Embedding:
        return Embedding(self._tensors[name])


def _halves_or_floats(tensor: StoredTensor) -> Float32Array:
    kinds = {"bf16": np.uint16, "f16": np.float16, "f32": np.float32}
    assert tensor.format in kinds, "norms, biases and embeddings are never quantised"
    return tensor.data.view(kinds[tensor.format])


def _widened(values: Float32Array, format: Format) -> Float32Array:
    if format == "bf16":  # bfloat16 is the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)
