"""Rows that are kept rounded to floats of 8 or 4 bits, as a model was trained with them (DeepSeek-V4.1).

Neighbouring numbers of a row share a scale. What is rounded stays float32: nothing is packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic

from moeinf.models.layers.array_math import A, ArrayMathOf

_LARGEST_8: Final = 448.0  # of float8_e4m3fn
_LARGEST_4: Final = 6.0  # of float4_e2m1


class Rounding(Generic[A]):
    def __init__(
        self, math: ArrayMathOf[A], rounds: bool, fractions: Callable[[A], A], nearest: Callable[[A], A]
    ) -> None:
        """rounds: whether anything is rounded; fractions: what is left of positive numbers without their powers of two,
        from 0.5 to 1; nearest: whole numbers, of two that are as near the even one."""
        self._math, self._rounds, self._fractions, self._nearest = math, rounds, fractions, nearest

    def window_rows(self, x: A) -> A:
        """x [..., width] in 8 bits; a scale, a power of two, for 32 numbers."""
        return self._in_blocks(x, 32, self._eight_bits, lambda most: self._power_above(self._least(most, 1e-4), 448))

    def entries(self, x: A) -> A:
        """x [..., width] in 4 bits; a scale of 8 bits for 16 numbers."""
        least = _LARGEST_4 * 2.0**-9
        return self._in_blocks(x, 16, self._four_bits, lambda most: self._eight_bits(self._least(most, least) / 6.0))

    def index_keys(self, x: A) -> A:
        """x [..., width], queries or keys, in 4 bits; a scale, a power of two, for 32 numbers."""
        least = _LARGEST_4 * 2.0**-126
        return self._in_blocks(x, 32, self._four_bits, lambda most: self._power_above(self._least(most, least), 6))

    def _in_blocks(self, x: A, size: int, rounded: Callable[[A], A], scale_of: Callable[[A], A]) -> A:
        """Rows that are no whole number of blocks stay as they are, as in the published code."""
        if not self._rounds or x.shape[-1] % size:
            return x
        blocks = x.reshape(*x.shape[:-1], x.shape[-1] // size, size)
        scales = scale_of(self._math.max(blocks.__abs__(), -1, True))
        return (rounded(blocks / scales) * scales).reshape(*x.shape)

    def _least(self, x: A, least: float) -> A:
        return self._math.clip(x, least, float("inf"))

    def _eight_bits(self, x: A) -> A:
        """Three bits of fraction behind the first one; below 2^-6 steps become no smaller."""
        steps = self._power_below(self._math.clip(x.__abs__(), 2.0**-6, _LARGEST_8)) * 0.125
        return self._nearest(self._math.clip(x, -_LARGEST_8, _LARGEST_8) / steps) * steps

    def _four_bits(self, x: A) -> A:
        """0, 0.5, 1, 1.5, 2, 3, 4 and 6."""
        steps = self._power_below(self._math.clip(x.__abs__(), 1.0, _LARGEST_4)) * 0.5
        return self._nearest(self._math.clip(x, -_LARGEST_4, _LARGEST_4) / steps) * steps

    def _power_below(self, x: A) -> A:
        """The largest power of two that is not above x."""
        return x / (self._fractions(x) * 2.0)

    def _power_above(self, x: A, largest: float) -> A:
        """The smallest power of two that is not below x / largest."""
        share = x * (1 / largest)
        power = self._power_below(share)
        return self._math.where(share > power, power * 2.0, power)
