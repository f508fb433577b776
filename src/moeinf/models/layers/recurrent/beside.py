"""Short convolutions beside what they see, x + convolution(x), of several widths in one layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from itertools import accumulate, pairwise
from typing import Generic

from moeinf.models.layers.array_math import A, joined
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import WeightsOf
from moeinf.models.layers.recurrent.state import RecurrentState


class ConvolutionsBeside(Generic[A]):
    """Those of one layer, which share a state of the cache; each is used once in a pass, by its number."""

    def __init__(
        self,
        weights: WeightsOf[A, object],
        convolutions: Sequence[Callable[..., A]],
        widths: Sequence[int],
        kernel: int,
        number: int,
        scales: Sequence[float] = (),
    ) -> None:
        """convolutions: Convolution or DynamicConvolution; widths: their channels. number: of the state in the cache.
        scales: of what each gives."""
        self._math, self._kernel, self._number, self._channels = weights.math, kernel, number, sum(widths)
        self._convolutions, self._scales = convolutions, scales or [1.0] * len(widths)
        self._places = [slice(a, b) for a, b in pairwise(accumulate(widths, initial=0))]
        self._states: list[tuple[slice, RecurrentState[A]]] = []  # of this pass, which rows go on with which

    def again(self, number: int) -> ConvolutionsBeside[A]:
        """The same convolutions with another state of the cache, of a layer that runs several times."""
        found = copy(self)
        found._number, found._states = number, []
        return found

    def new_state(self, capacity: int) -> RecurrentState[A]:
        return RecurrentState(self._math, (self._kernel - 1, self._channels), (0,))

    def begin(self, spans: Sequence[Span[object]]) -> None:
        """Said at the beginning of the layer: what comes behind its attention is not told of sequences."""
        self._states[:] = [(span.rows, span.cache.states[self._number]) for span in spans]

    def __call__(self, which: int, x: A, *given: A) -> A:
        """x [tokens, channels of this one] -> the same. given: what a dynamic one makes its weights of."""
        place, scale, convolution = (slice(None), self._places[which]), self._scales[which], self._convolutions[which]
        seen = [
            convolution(x[rows], state.conv[place], state.new_conv[place], *(each[rows] for each in given))
            for rows, state in self._states
        ]
        total = x + joined(self._math, seen)
        return total if scale == 1.0 else total * scale


class DynamicConvolution(Generic[A]):
    """As Convolution, of weights to which each token adds one for each head and distance."""

    def __init__(self, weights: WeightsOf[A, object], prefix: str, heads: int, kernel: int) -> None:
        """prefix: of the tensors `static_w` [kernel, channels], by how many tokens back one lies, and `weight_proj`
        [heads * kernel, width of what is given]."""
        self._math, self._heads, self._kernel = weights.math, heads, kernel
        self._static = weights.vector(f"{prefix}static_w").reshape(kernel, heads, -1)
        self._project = weights.linear(f"{prefix}weight_proj")

    def __call__(self, x: A, before: A, left: A, given: A) -> A:
        """As Convolution; given [tokens, width]."""
        tokens, seen = len(x), self._math.concatenate([before, x], 0)
        left[...] = seen[len(seen) - len(left) :]
        own = self._project(given).reshape(tokens, self._heads, self._kernel)
        by_head = seen.reshape(len(seen), self._heads, -1)
        total = by_head[self._kernel - 1 :] * (self._static[:1] + own[:, :, :1])
        for back in range(1, self._kernel):
            at = self._kernel - 1 - back
            total += by_head[at : at + tokens] * (self._static[back : back + 1] + own[:, :, back : back + 1])
        return total.reshape(*x.shape)


def convolutions_bytes(kernel: int, channels: int) -> int:
    """Of one layer's state: what it was before a pass and after it."""
    return 2 * 4 * (kernel - 1) * channels
