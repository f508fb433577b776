"""Arrays, and the functions by which a family spells out its own layers once, for numpy on the CPU and torch on a GPU.

Beside these, arrays of both libraries share operators, indexing, `reshape` and `@`. On a device nothing here waits
but `to_host`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from moeinf.types import Activation

A = TypeVar("A", bound="Array")
Index = slice | EllipsisType | tuple[slice | int | EllipsisType | None, ...]


class Array(Protocol):
    """An array of the library that computes, numpy's on the CPU or torch's on a GPU: what is written once for both
    uses of it only what is listed here."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def T(self: A) -> A: ...

    def __len__(self) -> int: ...

    def __getitem__(self: A, index: Index, /) -> A: ...

    def __setitem__(self: A, index: Index, value: A | float, /) -> None: ...

    def __add__(self: A, other: A | float, /) -> A: ...

    def __sub__(self: A, other: A | float, /) -> A: ...

    def __mul__(self: A, other: A | float, /) -> A: ...

    def __truediv__(self: A, other: A | float, /) -> A: ...

    def __pow__(self: A, other: float, /) -> A: ...

    def __matmul__(self: A, other: A, /) -> A: ...

    def __rmul__(self: A, other: float, /) -> A: ...

    def __neg__(self: A) -> A: ...

    def __abs__(self: A) -> A: ...

    def reshape(self: A, first: int, /, *rest: int) -> A: ...

    def swapaxes(self: A, first: int, second: int, /) -> A: ...

    def cumsum(self: A, axis: int, /) -> A: ...

    # Comparisons give an array of truth values, which numpy types as another class than one of numbers.

    def __eq__(self: A, other: A | float, /) -> Any: ...  # type: ignore[override]

    def __ne__(self: A, other: A | float, /) -> Any: ...  # type: ignore[override]

    def __le__(self: A, other: A | float, /) -> Any: ...

    def __gt__(self: A, other: A | float, /) -> Any: ...


Hidden = Array  # [tokens, hidden_size] float32


class ArrayMathOf(Protocol[A]):
    def sigmoid(self, x: A) -> A: ...
    def silu(self, x: A) -> A: ...
    def relu(self, x: A) -> A: ...
    def gelu(self, x: A) -> A: ...  # exact, by erf
    def gelu_tanh(self, x: A) -> A: ...
    def softplus(self, x: A) -> A: ...
    def exp(self, x: A) -> A: ...
    def tanh(self, x: A) -> A: ...
    def softmax(self, x: A) -> A: ...  # over the last dimension
    def clip(self, x: A, low: float, high: float) -> A: ...
    def integers(self, x: A) -> A: ...  # whole numbers, as indices
    def where(self, condition: A, x: A, y: A | float) -> A: ...
    def concatenate(self, parts: Sequence[A], axis: int) -> A: ...
    def einsum(self, spec: str, *operands: A) -> A: ...
    def zeros(self, shape: tuple[int, ...]) -> A: ...
    def of_host(self, values: np.ndarray) -> A: ...  # the same numbers, where this computes
    def to_host(self, x: A) -> np.ndarray: ...  # waits for the device
    def sum(self, x: A, axis: int, keepdims: bool) -> A: ...
    def max(self, x: A, axis: int, keepdims: bool) -> A: ...

    def solve_unit_lower(self, a: A, b: A) -> A:
        """The solution of (1 + a) x = b, of matrices a that have nothing on the diagonal and above."""
        ...

    def top_k(self, x: A, k: int) -> A:
        """Indices of the k largest of the last dimension, largest first, of equals the lowest. As Routing.ids."""
        ...

    def take(self, x: A, indices: A) -> A:
        """x[..., indices[..., j]] of the last dimension."""
        ...


ArrayMath = ArrayMathOf[Array]  # of whatever device


class FusedOf(Protocol[A]):
    """What is computed in one go where a device has something for it, and else by the functions of its math."""

    def turned(self, x: A, cos: A, sin: A, *, at_end: bool = False, interleaved: bool = False) -> A:
        """x [tokens, heads, head_dim] with rotary positions at the beginnings, or the ends, of heads.

        cos, sin [tokens, pairs]. interleaved: a pair lies side by side; else half of the rotated part apart.
        """
        ...

    def weighed(self, x: A, shares: A) -> A:
        """The sum over the streams of share * x: x [tokens, streams * hidden], shares [tokens, streams]."""
        ...

    def mix(self, x: A, added: A, after: A, mixing: A | None) -> None:
        """x_i <- after_i added + sum over j of mixing_ji x_j, of the streams of each token; None: + x_i.

        x [tokens, streams * hidden], added [tokens, hidden], after [tokens, streams], mixing [tokens, streams,
        streams].
        """
        ...

    def add_scaled(self, x: A, added: A, by: A, keep: A, shift: A) -> None:
        """x <- added * by + x * keep + shift: x, added [tokens, hidden]; the others [hidden]."""
        ...


class Spelled(Generic[A]):
    """FusedOf by the functions of a math."""

    def __init__(self, math: ArrayMathOf[A]) -> None:
        self._math = math

    def turned(self, x: A, cos: A, sin: A, *, at_end: bool = False, interleaved: bool = False) -> A:
        half, cos, sin = cos.shape[1], cos[:, None], sin[:, None]
        first = x.shape[-1] - 2 * half if at_end else 0
        front, part, rest = x[..., :first], x[..., first : first + 2 * half], x[..., first + 2 * half :]
        left, right = (part[..., ::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
        turned = [left * cos - right * sin, right * cos + left * sin]
        if interleaved:
            turned = [self._math.concatenate([each[..., None] for each in turned], -1).reshape(*part.shape)]
        return self._math.concatenate([front, *turned, rest], -1)

    def weighed(self, x: A, shares: A) -> A:
        return self._math.sum(x.reshape(*shares.shape, -1) * shares[:, :, None], 1, False)

    def mix(self, x: A, added: A, after: A, mixing: A | None) -> None:
        streams = x.reshape(*after.shape, -1)
        out = added[:, None] * after[:, :, None]
        if mixing is None:
            out = out + streams
        else:
            for j in range(after.shape[1]):
                out = out + mixing[:, j, :, None] * streams[:, j : j + 1]
        x[...] = out.reshape(*x.shape)

    def add_scaled(self, x: A, added: A, by: A, keep: A, shift: A) -> None:
        x[...] = added * by + x * keep + shift


def joined(math: ArrayMathOf[A], parts: Sequence[A], axis: int = 0) -> A:
    """Arrays one behind the other; one alone is not copied."""
    return parts[0] if len(parts) == 1 else math.concatenate(parts, axis)


def function_of(math: ArrayMathOf[A], activation: Activation) -> Callable[[A], A]:
    """Of those that a field of config.json may name (models/activations.py)."""
    functions: dict[Activation, Callable[[A], A]] = {
        "silu": math.silu,
        "gelu": math.gelu,
        "gelu_tanh": math.gelu_tanh,
        "quick_gelu": lambda x: x * math.sigmoid(x * 1.702),
        "relu": math.relu,
        "relu2": lambda x: math.relu(x) ** 2,
    }
    return functions[activation]
