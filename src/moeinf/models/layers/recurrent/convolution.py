"""A causal convolution of each channel by itself, over the last few tokens."""

from __future__ import annotations

from typing import Generic

from moeinf.models.layers.array_math import A
from moeinf.models.layers.protocol import WeightsOf


class Convolution(Generic[A]):
    """Each channel's weighted sum over its last `kernel` tokens, and its bias where there are biases.

    dilation: the tokens are so far apart, and `before` and `left` have so many times kernel - 1.
    """

    def __init__(
        self, weights: WeightsOf[A, object], prefix: str, channels: int, kernel: int, dilation: int = 1
    ) -> None:
        """prefix: of the tensors `weight` [channels, 1, kernel] and `bias` [channels], which may be missing."""
        self._math, self._dilation = weights.math, dilation
        taps = weights.vector(f"{prefix}weight").reshape(channels, kernel)
        self._taps = [taps[:, i] * 1.0 for i in range(kernel)]  # [channels] each, contiguous
        self._bias = weights.vector(f"{prefix}bias") if f"{prefix}bias" in weights else None

    def __call__(self, x: A, before: A, left: A) -> A:
        """x [tokens, channels] -> the same. before [kernel - 1, channels]: the inputs in front of x; fills `left`,
        which may be `before`, with the last ones, of which it has those that the tokens behind x will see."""
        tokens, seen = len(x), self._math.concatenate([before, x], 0)
        left[...] = seen[len(seen) - len(left) :]
        total = seen[:tokens] * self._taps[0]
        for i, taps in enumerate(self._taps[1:], 1):
            at = i * self._dilation
            total += seen[at : at + tokens] * taps
        return total if self._bias is None else total + self._bias
