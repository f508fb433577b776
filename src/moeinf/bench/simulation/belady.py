"""The bound of every eviction policy: it knows which routing comes next."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.traces.trace import Trace, passes_of
from moeinf.types import FloatArray, IntArray

BOUND: Final = "belady"  # knows the future: no policy hits more often


class Belady(Listener):
    """The bound: out goes the expert whose next use really is last. Needs the trace that will be observed.

    Of passes of several tokens it is the bound of what is read; which misses are of the most tokens it does not ask.
    """

    name = BOUND

    def __init__(self, trace: Trace, prefill_tokens: int = 0) -> None:
        """prefill_tokens: see passes_of."""
        tokens, layers, _ = trace.experts.shape
        never = tokens * layers * 2
        upcoming = np.full((layers, trace.shape.num_experts), never, np.float64)
        next_use = np.empty(trace.experts.shape)
        visited = trace.experts[:, :, 0] >= 0
        passes = [(first, last) for _, first, last in passes_of(trace, prefill_tokens)]
        for number in range(len(passes) - 1, -1, -1):
            first, last = passes[number]
            rows = np.flatnonzero(visited[first])[:, None]
            experts = trace.experts[first:last, rows[:, 0]]
            next_use[first:last, rows[:, 0]] = upcoming[rows, experts]
            upcoming[rows, experts] = number * layers + rows
        self._scores: FloatArray = -upcoming
        self._next_use = [next_use[visited[:, layer], layer] for layer in range(layers)]  # [visits, top_k] of each
        self._visits = np.zeros(layers, np.int64)

    def observe(self, layer: int, ids: IntArray) -> None:
        first = self._visits[layer]
        self._scores[layer, ids] = -self._next_use[layer][first : first + len(ids)]  # of repeated ids the last counts
        self._visits[layer] += len(ids)

    def keep_scores(self, layer: int) -> FloatArray:
        return self._scores
