"""TokenMemory by its definition: the likeness of every pair of tokens, afresh at each visit."""

from __future__ import annotations

import math

import numpy as np

from moeinf.types import FloatArray, IntArray

BEFORE, SHARPNESS, MATCHES, HORIZON, LEAST, BUCKETS = 0.5, 20.0, 64, 4, 1e-4, 256


class SlowTokenMemory:
    """For fewer tokens than it would forget."""

    def __init__(self, num_layers: int, num_experts: int, top_k: int) -> None:
        self._experts, self._size = num_experts, num_layers * top_k
        self._tokens: list[dict[int, set[int]]] = []
        self._before: dict[int, float] = {}  # of the running token, by the number of the past one
        self._likeness: dict[int, float] = {}
        self._layers = self._layer = num_layers
        self._width = 0  # tokens of the running pass

    def observe(self, layer: int, ids: IntArray) -> FloatArray:
        """[2, num_experts]: what followed the tokens most alike, and what the next HORIZON tokens used."""
        if layer <= self._layer or len(ids) != self._width:
            follows = len(ids) == 1
            self._before = {past + 1: BEFORE * old for past, old in self._likeness.items()} if follows else {}
            self._tokens += [{} for _ in ids]
        self._layer, self._width = layer, len(ids)
        running = len(self._tokens) - 1
        for token, row in zip(self._tokens[-len(ids) :], ids.tolist(), strict=True):
            token[layer] = set(row)
        now = self._tokens[running]
        shared = [
            sum(len(used & token.get(at, set())) for at, used in now.items() if at <= layer) for token in self._tokens
        ]
        self._likeness = {
            past: float(np.float32(self._before.get(past, 0)) + np.float32(1 / self._size) * np.float32(shared[past]))
            for past in range(running + 1)
        }
        earlier = range(running - 1, -1, -1)
        ranked = sorted(earlier, key=lambda token: -int(self._likeness[token] * BUCKETS))[
            :MATCHES
        ]  # of equals the newest
        result = np.zeros((2, self._experts))
        if not ranked:
            return result
        best = max(self._likeness[token] for token in ranked)
        weights = {token: math.exp(SHARPNESS * (self._likeness[token] - best)) for token in ranked}
        weights = {token: weight for token, weight in weights.items() if weight >= LEAST}
        for match, weight in weights.items():
            for behind in range(1, min(HORIZON, running - match) + 1):
                used = list(self._tokens[match + behind].get(layer, set()))
                result[1, used] += weight
                if behind == 1:
                    result[0, used] += weight
        return result / sum(weights.values())

    def restart(self) -> None:
        """Routings were left out: HORIZON tokens of which nothing is known."""
        if self._layer != self._layers:
            self._tokens += [{} for _ in range(HORIZON)]
            self._likeness, self._layer = {}, self._layers
