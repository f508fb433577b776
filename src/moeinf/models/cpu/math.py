"""ArrayMath on the CPU: numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf import _native
from moeinf.types import Float32Array


class NumpyMath:
    """See moeinf.models.layers.array_math.ArrayMath."""

    def sigmoid(self, x: Float32Array) -> Float32Array:
        with np.errstate(over="ignore"):  # exp(-x) of a very negative x is infinite, and the result 0
            y: np.ndarray = 1 / (1 + np.exp(-x))
        return y

    def silu(self, x: Float32Array) -> Float32Array:
        return x * self.sigmoid(x)

    def relu(self, x: Float32Array) -> Float32Array:
        y: Float32Array = np.maximum(x, 0)
        return y

    def gelu(self, x: Float32Array) -> Float32Array:
        y: Float32Array = x * np.float32(0.5) * (1 + _erf(x * np.float32(0.5**0.5)))
        return y

    def gelu_tanh(self, x: Float32Array) -> Float32Array:
        y: Float32Array = (
            np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)))
        )
        return y

    def softplus(self, x: Float32Array) -> Float32Array:
        y: Float32Array = np.logaddexp(x, np.float32(0))
        return y

    def exp(self, x: Float32Array) -> Float32Array:
        return np.exp(x)

    def tanh(self, x: Float32Array) -> Float32Array:
        return np.tanh(x)

    def softmax(self, x: Float32Array) -> Float32Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        y: Float32Array = e / e.sum(-1, keepdims=True)
        return y

    def clip(self, x: Float32Array, low: float, high: float) -> Float32Array:
        return np.clip(x, np.float32(low), np.float32(high))

    def integers(self, x: Float32Array) -> np.ndarray:
        return x.astype(np.int64)

    def where(self, condition: np.ndarray, x: Float32Array, y: Float32Array | float) -> Float32Array:
        return np.where(condition, x, np.float32(y) if isinstance(y, float) else y)

    def concatenate(self, parts: Sequence[Float32Array], axis: int) -> Float32Array:
        return np.concatenate(parts, axis)

    def einsum(self, spec: str, *operands: Float32Array) -> Float32Array:
        y: Float32Array = np.einsum(spec, *operands, optimize=True)
        return y

    def zeros(self, shape: tuple[int, ...]) -> Float32Array:
        return np.zeros(shape, np.float32)

    def of_host(self, values: np.ndarray) -> np.ndarray:
        return values

    def to_host(self, x: np.ndarray) -> np.ndarray:
        return x

    def sum(self, x: Float32Array, axis: int, keepdims: bool) -> Float32Array:
        y: Float32Array = x.sum(axis, keepdims=keepdims)
        return y

    def max(self, x: Float32Array, axis: int, keepdims: bool) -> Float32Array:
        y: Float32Array = x.max(axis, keepdims=keepdims)
        return y

    def solve_unit_lower(self, a: Float32Array, b: Float32Array) -> Float32Array:
        return np.linalg.solve(a + np.eye(a.shape[-1], dtype=np.float32), b)

    def top_k(self, x: Float32Array, k: int) -> np.ndarray:
        return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int64)

    def take(self, x: Float32Array, indices: np.ndarray) -> Float32Array:
        return np.take_along_axis(x, indices, -1)


class NativeFused:
    """moeinf.models.layers.array_math.FusedOf, in all threads of the kernels."""

    def __init__(self, kernels: _native.Kernels) -> None:
        self._kernels = kernels

    def turned(
        self, x: Float32Array, cos: Float32Array, sin: Float32Array, *, at_end: bool = False, interleaved: bool = False
    ) -> Float32Array:
        rows, head_dim = _rows(x), x.shape[-1]
        first, out = head_dim - 2 * cos.shape[1] if at_end else 0, np.empty_like(rows)
        _native.turn_heads(self._kernels, rows, _rows(cos), _rows(sin), head_dim, first, interleaved, out)
        return out.reshape(x.shape)

    def weighed(self, x: Float32Array, shares: Float32Array) -> Float32Array:
        out = np.empty((len(x), x.shape[1] // shares.shape[1]), np.float32)
        _native.weigh_streams(self._kernels, x, _rows(shares), out)
        return out

    def mix(self, x: Float32Array, added: Float32Array, after: Float32Array, mixing: Float32Array | None) -> None:
        _native.mix_streams(self._kernels, x, added, _rows(after), None if mixing is None else _rows(mixing))

    def add_scaled(
        self, x: Float32Array, added: Float32Array, by: Float32Array, keep: Float32Array, shift: Float32Array
    ) -> None:
        _native.add_scaled(self._kernels, x, added, by, keep, shift)


def _rows(x: Float32Array) -> Float32Array:
    """[first dimension, all others], in one piece."""
    y: Float32Array = np.ascontiguousarray(x, np.float32).reshape(len(x), -1)
    return y


def _erf(x: Float32Array) -> Float32Array:
    """Abramowitz and Stegun 7.1.26, in float64: within 1.5e-7."""
    z = np.abs(x.astype(np.float64))
    t = 1 / (1 + 0.3275911 * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    y: Float32Array = (np.sign(x) * (1 - poly * np.exp(-z * z))).astype(np.float32)
    return y
