"""Dense weights on the CPU, and the two things that are computed with a single one: products and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Generic

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.math import NativeFused, NumpyMath
from moeinf.models.cpu.paged_rows import SequencePages
from moeinf.models.layers.attention.token_rows import K
from moeinf.models.layers.attention_config import AttentionConfig, NormConfig, NormKind, narrow_heads
from moeinf.models.layers.weights import StoredTensor, transposed, vector, wider_heads
from moeinf.types import Activation, ByteArray, Float32Array, KVFormat, Routing, Spares, format_bytes


class NativeWeights:
    """The dense weights by name, which the native kernels multiply by as they are stored."""

    def __init__(self, kernels: _native.Kernels, tensors: Mapping[str, StoredTensor], spares: int = 0) -> None:
        self.kernels = kernels
        self.math, self.fused = NumpyMath(), NativeFused(kernels)
        self.tensors = tensors
        self.spares = spares

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def vector(self, name: str) -> Float32Array:
        """A norm or a bias, in float32."""
        return vector(self.tensors[name])

    def linear(self, name: str, bias: str | None = None, activation: Activation | None = None) -> Linear:
        return Linear(self.kernels, self.tensors[name], None if bias is None else self.vector(bias), activation)

    def adding(self, name: str) -> Callable[[Float32Array, Float32Array], None]:
        product = self.linear(name)

        def add(x: Float32Array, out: Float32Array) -> None:
            out += product(x)

        return add

    def transposed(self, name: str) -> Linear:
        return Linear(self.kernels, transposed(self.tensors[name]))

    def linears(self, name: str, rows: Sequence[int]) -> list[Linear]:
        """Of the matrices that lie one behind the other in one tensor, as views of it; rows: of each."""
        tensor, found, at = self.tensors[name], list[Linear](), 0
        row_bytes, cols = len(tensor.data) // sum(rows), prod(tensor.shape) // sum(rows)
        for count in rows:
            data = tensor.data[at * row_bytes : (at + count) * row_bytes]
            found.append(Linear(self.kernels, replace(tensor, data=data, shape=(count, cols))))
            at += count
        return found

    def stacked(self, name: str, rows: Sequence[int]) -> list[_native.Matrix]:
        return [linear.native for linear in self.linears(name, rows)]

    def with_wide_heads(self, config: AttentionConfig, prefix: str) -> NativeWeights:
        """The same, in which queries and keys that are narrower than values are filled up."""
        narrow = narrow_heads(config, prefix)
        wide = {name: wider_heads(self.tensors[name], heads, config.head_dim) for name, heads in narrow.items()}
        return NativeWeights(self.kernels, {**self.tensors, **wide}, self.spares) if wide else self

    def norm(self, config: NormConfig | None) -> Callable[[Float32Array], Float32Array]:
        if config is None:
            return lambda x: x
        weight, bias = self.norm_vectors(config.name, config.kind)
        if config.groups == 1:
            return Norm(self.kernels, weight, bias, config.eps)
        size = len(weight) // config.groups
        of_group = Norm(self.kernels, np.ones(size, np.float32), None, config.eps)
        return lambda x: of_group(x.reshape(-1, size)).reshape(x.shape) * weight

    def norm_vectors(self, name: str, kind: NormKind) -> tuple[Float32Array, Float32Array | None]:
        """The vector that a norm multiplies by, and the one that a layer norm adds."""
        weight = self.vector(name)
        if kind == "layer":
            return weight, self.vector(name.removesuffix("weight") + "bias")
        if kind == "centred":
            return weight, np.zeros_like(weight)
        return (weight + 1 if kind == "rms+1" else weight), None

    def routing(
        self, ids: np.ndarray, weights: Float32Array, spares: tuple[np.ndarray, Float32Array, bool] | None = None
    ) -> Routing:
        others = None
        if spares is not None:
            others = Spares(np.ascontiguousarray(spares[0]), np.ascontiguousarray(spares[1], np.float32), spares[2])
        return Routing(ids, np.ascontiguousarray(weights, np.float32), others)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What parts are made with on the CPU."""

    weights: NativeWeights
    kept: KVFormat  # of keys and values
    pages: SequencePages | None = None  # where sequences share rows

    def rows(self, planes: int, capacity: int, width: int) -> HostRows[ByteArray]:
        by_plane = self._by_plane(planes, capacity, format_bytes(self.kept, (width,)))
        return HostRows(by_plane.reshape(-1), by_plane)

    def floats(self, capacity: int, width: int) -> HostRows[Float32Array]:
        by_plane = self._by_plane(1, capacity, width * 4)
        data: Float32Array = by_plane.reshape(-1)[: capacity * width * 4].view(np.float32).reshape(capacity, width)
        return HostRows(data, by_plane)

    def _by_plane(self, planes: int, capacity: int, row_bytes: int) -> ByteArray:
        made = None if self.pages is None else self.pages.made
        if made is not None and row_bytes:
            return made.rows(planes, capacity, row_bytes)
        return np.empty((planes, capacity, row_bytes), np.uint8)


@dataclass(frozen=True, slots=True)
class HostRows(Generic[K]):
    """As RowsOf. Pages are touched, and so counted as resident, only as tokens arrive."""

    data: K
    by_plane: ByteArray  # the same memory, [planes, room, row_bytes]

    @property
    def planes(self) -> int:
        return len(self.by_plane)

    @property
    def room(self) -> int:
        tokens: int = self.by_plane.shape[1]
        return tokens

    @property
    def row_bytes(self) -> int:
        size: int = self.by_plane.shape[2]
        return size

    def save(self, start: int, into: ByteArray) -> None:
        into[...] = self.by_plane[:, start : start + into.shape[1]]

    def load(self, start: int, rows: ByteArray) -> None:
        self.by_plane[:, start : start + rows.shape[1]] = rows


class Linear:
    """A weight matrix [rows, cols], multiplied by the native kernels in the format in which it is stored."""

    def __init__(
        self,
        kernels: _native.Kernels,
        tensor: StoredTensor,
        bias: Float32Array | None = None,
        activation: Activation | None = None,
    ) -> None:
        """bias, activation: what is added to a product, and then taken of it."""
        rows, cols = tensor.shape
        self._bias, self._activation = bias, activation
        self.native = _native.Matrix(tensor.data, tensor.held_as, rows, cols, tensor.scale)
        self._kernels = kernels
        self._rows = rows

    def __call__(self, x: Float32Array) -> Float32Array:
        """x [tokens, cols] -> [tokens, rows]."""
        y = np.empty((len(x), self._rows), np.float32)
        rows = np.ascontiguousarray(x)  # which it is, but for heads that are one number wide
        self._kernels.linear(rows, self.native, y, self._bias, self._activation)
        return y


class Norm:
    """x / rms(x) * weight over the last dimension; with a bias (x - mean) / std * weight + bias."""

    def __init__(self, kernels: _native.Kernels, weight: Float32Array, bias: Float32Array | None, eps: float) -> None:
        self._kernels, self._weight, self._bias, self._eps = kernels, weight, bias, eps

    def __call__(self, x: Float32Array) -> Float32Array:
        rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        out = np.empty_like(rows)
        if self._bias is None:
            _native.rms_norm(self._kernels, rows, self._weight, self._eps, out)
        else:
            _native.layer_norm(self._kernels, rows, self._weight, self._bias, self._eps, out)
        return out.reshape(x.shape)
