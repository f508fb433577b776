"""Short convolutions beside what they see: x + convolution(x), of several widths in one layer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Generic

from moeinf.models.layers.array_math import A
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import WeightsOf
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.state import RecurrentState


class ConvolutionsBeside(Generic[A]):
    """Those of one layer, which share a state of the cache; each is used once in a pass, by its number."""

    def __init__(
        self, weights: WeightsOf[A, object], prefixes: Sequence[str], widths: Sequence[int], kernel: int, number: int
    ) -> None:
        """prefixes: of the tensors of each; widths: their channels. number: of the state in the cache."""
        self._math, self._kernel, self._number, self._channels = weights.math, kernel, number, sum(widths)
        self._convolutions = [Convolution(weights, p, w, kernel) for p, w in zip(prefixes, widths, strict=True)]
        self._places = [slice(a, b) for a, b in pairwise(accumulate(widths, initial=0))]
        self._states: list[RecurrentState[A]] = []  # one: of the cache of this pass

    def new_state(self, capacity: int) -> RecurrentState[A]:
        return RecurrentState(self._math, (self._kernel - 1, self._channels), (0,))

    def begin(self, cache: Cache) -> None:
        """Said at the beginning of the layer: what comes behind its attention is not given the cache."""
        self._states[:] = [cache.states[self._number]]

    def __call__(self, which: int, x: A) -> A:
        """x [tokens, channels of this one] -> the same."""
        (state,), place = self._states, (slice(None), self._places[which])
        return x + self._convolutions[which](x, state.conv[place], state.new_conv[place])


def convolutions_bytes(kernel: int, channels: int) -> int:
    """Of one layer's state: what it was before a pass and after it."""
    return 2 * 4 * (kernel - 1) * channels
