"""Eviction by when, and how often, an expert was used: what can be said of each expert without the others."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Listener, TokenScores
from moeinf.runtime.policy.policy_trace import count_ids
from moeinf.types import FloatArray, IntArray, MoeShape


class LeastRecentlyUsed(Listener):
    """Out goes the expert whose last use is longest ago, measured in layer visits."""

    name = "lru"
    step = 0

    def __init__(self, shape: MoeShape) -> None:
        self._last_use: FloatArray = np.full((shape.num_layers, shape.num_experts), -1.0)
        self._clock = 0

    def observe(self, layer: int, ids: IntArray) -> None:
        self._last_use[layer, ids] = self._clock
        self._clock += 1

    def keep_scores(self, layer: int) -> FloatArray:
        return self._last_use

    def token_scores(self) -> TokenScores:
        return TokenScores(self._last_use, self._clock)


class LeastFrequentlyUsed(Listener):
    """Out goes the expert that the fewest tokens have used since the start."""

    name = "lfu"
    step = 0

    def __init__(self, shape: MoeShape) -> None:
        self._uses: FloatArray = np.zeros((shape.num_layers, shape.num_experts))

    def observe(self, layer: int, ids: IntArray) -> None:
        self._uses[layer] += count_ids(ids, self._uses.shape[1])

    def keep_scores(self, layer: int) -> FloatArray:
        return self._uses

    def token_scores(self) -> TokenScores:
        return TokenScores(self._uses, -np.inf)


class DecayedFrequency(Listener):
    """Out goes the expert of the smallest sum of 2^(-age / half-life) over its uses; ages in tokens of its layer.

    Source: LRFU (Lee, Choi and others, IEEE Transactions on Computers 50(12), 2001), whose weight is (1/2)^(lambda x):
    here lambda is 1/16. The tokens of a pass count one after the other.
    """

    name = "decayed-lfu"
    step = 0

    HALF_LIFE_TOKENS: Final = 16.0

    def __init__(self, shape: MoeShape) -> None:
        self._frequency: FloatArray = np.zeros((shape.num_layers, shape.num_experts))
        self._decay = float(np.exp2(-1 / self.HALF_LIFE_TOKENS))

    def observe(self, layer: int, ids: IntArray) -> None:
        frequency, tokens = self._frequency[layer], len(ids)
        frequency *= self._decay**tokens
        if tokens == 1:
            frequency[ids[0]] += 1.0
        else:
            weights = np.repeat(self._decay ** np.arange(tokens - 1, -1, -1), ids.shape[1])
            frequency += np.bincount(ids.ravel(), weights, len(frequency))

    def keep_scores(self, layer: int) -> FloatArray:
        return self._frequency

    def token_scores(self) -> TokenScores:
        return TokenScores(self._frequency, -np.inf)


class LastButOne(Listener):
    """LRU-K with K = 2: out goes the expert whose last use but one is longest ago; of those with one use, the LRU one.

    Source: O'Neil, O'Neil and Weikum, SIGMOD 1993. Uses are remembered of experts that left as well, without end (their
    retained information period), and the uses of one visit count as one (their correlated references).
    """

    name = "lru-2"
    step = 0

    LAST: Final = 2.0**-27  # weight of the last use beside the last but one: doubles hold both exactly for 2^26 visits

    def __init__(self, shape: MoeShape) -> None:
        layers, experts = shape.num_layers, shape.num_experts
        self._last: FloatArray = np.full((layers, experts), -1.0)
        self._scores: FloatArray = np.full((layers, experts), -2.0)  # last but one + LAST * last
        self._clock = 0

    def observe(self, layer: int, ids: IntArray) -> None:
        last, used = self._last[layer], ids[0] if len(ids) == 1 else np.unique(ids)
        self._scores[layer, used] = last[used] + self.LAST * self._clock
        last[used] = self._clock
        self._clock += 1

    def keep_scores(self, layer: int) -> FloatArray:
        return self._scores

    def token_scores(self) -> TokenScores:
        return TokenScores(ranks(self._scores), -np.inf)


def ranks(scores: FloatArray) -> FloatArray:
    """The scores' order as whole numbers [L, E], which a device's 32 bits hold exactly; equals stay equal."""
    _, places = np.unique(scores, return_inverse=True)
    order: FloatArray = places.reshape(scores.shape).astype(np.float64)
    return order
