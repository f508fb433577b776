"""ArrayMath on the CPU: numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moeinf.models.layers.array_math import Array


class NumpyMath:
    """See moeinf.models.layers.array_math.ArrayMath."""

    def sigmoid(self, x: Array) -> Array:
        with np.errstate(over="ignore"):  # exp(-x) of a very negative x is infinite, and the result 0
            return 1 / (1 + np.exp(-x))

    def silu(self, x: Array) -> Array:
        return x * self.sigmoid(x)

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def gelu(self, x: Array) -> Array:
        return x * np.float32(0.5) * (1 + _erf(x * np.float32(0.5**0.5)))

    def gelu_tanh(self, x: Array) -> Array:
        return np.float32(0.5) * x * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x**3)))

    def softplus(self, x: Array) -> Array:
        return np.logaddexp(x, np.float32(0))

    def exp(self, x: Array) -> Array:
        return np.exp(x)

    def tanh(self, x: Array) -> Array:
        return np.tanh(x)

    def softmax(self, x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def clip(self, x: Array, low: float, high: float) -> Array:
        return np.clip(x, np.float32(low), np.float32(high))

    def where(self, condition: Array, x: Array, y: Array | float) -> Array:
        return np.where(condition, x, np.float32(y) if isinstance(y, float) else y)

    def concatenate(self, parts: Sequence[Array], axis: int) -> Array:
        return np.concatenate(parts, axis)

    def einsum(self, spec: str, *operands: Array) -> Array:
        return np.einsum(spec, *operands, optimize=True)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        return np.zeros(shape, np.float32)

    def of_host(self, values: np.ndarray) -> Array:
        return values

    def sum(self, x: Array, axis: int, keepdims: bool) -> Array:
        return x.sum(axis, keepdims=keepdims)

    def max(self, x: Array, axis: int, keepdims: bool) -> Array:
        return x.max(axis, keepdims=keepdims)

    def solve_unit_lower(self, a: Array, b: Array) -> Array:
        return np.linalg.solve(a + np.eye(a.shape[-1], dtype=np.float32), b)

    def top_k(self, x: Array, k: int) -> Array:
        return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int64)

    def take(self, x: Array, indices: Array) -> Array:
        return np.take_along_axis(x, indices, -1)


def _erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26, in float64: within 1.5e-7."""
    z = np.abs(x.astype(np.float64))
    t = 1 / (1 + 0.3275911 * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return (np.sign(x) * (1 - poly * np.exp(-z * z))).astype(np.float32)
