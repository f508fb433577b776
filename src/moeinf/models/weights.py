"""Dense weights as they are stored: bytes with a format and a shape, and what is read from them without a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.types import ByteArray, Float32Array, Format


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The bytes of one tensor: `data` uint8, 1-D, rows of whole blocks of `format`, one behind the other."""

    data: ByteArray
    format: Format
    shape: tuple[int, ...]


class Embedding:
    """Rows of a matrix, looked up; its bytes may lie in memory or in a mapped file."""

    def __init__(self, tensor: StoredTensor) -> None:
        self._table = _halves_or_floats(tensor).reshape(tensor.shape)
        self._format = tensor.format

    def __call__(self, ids: Sequence[int]) -> Float32Array:
        """ids [tokens] -> [tokens, hidden]."""
        return _widened(self._table[np.asarray(ids)], self._format)


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
