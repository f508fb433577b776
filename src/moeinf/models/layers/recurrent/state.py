"""What the tokens of a sequence leave for the next one in a recurrent layer."""

from __future__ import annotations

from math import prod
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A, ArrayMathOf
from moeinf.types import ByteArray


class RecurrentState(Generic[A]):
    """The inputs that a convolution still sees, and the state of each head.

    A pass reads `conv` and `heads` and writes `new_conv` and `new_heads`, which count when it is over (`commit`): one
    that is given up half-way has changed nothing.
    """

    rewinds = False

    def __init__(self, math: ArrayMathOf[A], conv: tuple[int, int], heads: tuple[int, ...]) -> None:
        """The shapes of both; an empty one has a 0 in it."""
        self._math = math
        self.conv, self.new_conv = (math.zeros(conv) for _ in range(2))
        self.heads, self.new_heads = (math.zeros(heads) for _ in range(2))
        self._in_conv = conv[0] * conv[1]
        self.num_bytes = 4 * (self._in_conv + prod(heads))  # what the next pass reads

    def commit(self) -> None:
        if isinstance(self.heads, np.ndarray):
            self.conv, self.new_conv = self.new_conv, self.conv
            self.heads, self.new_heads = self.new_heads, self.heads
        else:  # work captured on a device reads and writes the same memory at every repetition
            self.conv[...] = self.new_conv
            self.heads[...] = self.new_heads

    def truncate(self, length: int) -> None:
        assert length == 0
        self.conv[...] = 0
        self.heads[...] = 0

    def save(self, into: ByteArray) -> None:
        floats = into.view(np.float32)
        conv, heads = self._math.to_host(self.conv), self._math.to_host(self.heads)
        floats[: self._in_conv], floats[self._in_conv :] = conv.reshape(-1), heads.reshape(-1)

    def load(self, kept: ByteArray) -> None:
        floats = kept.view(np.float32)
        self.conv[...] = self._math.of_host(floats[: self._in_conv].reshape(self.conv.shape))
        self.heads[...] = self._math.of_host(floats[self._in_conv :].reshape(self.heads.shape))
