"""What is computed in one go where a device has something for it, and else by the functions of its math."""

from __future__ import annotations

from typing import Generic, Protocol

from moeinf.models.layers.array_math import A, ArrayMathOf


class FusedOf(Protocol[A]):
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
