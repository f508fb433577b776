"""The bound of every eviction policy: it knows which routing comes next."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.bench.traces import Trace
from moeinf.types import FloatArray, IntArray, Phase

BOUND: Final = "belady"  # knows the future: no policy hits more often


class Belady:
    """The bound: out goes the expert whose next use really is last. Needs the trace that will be observed."""

    name = BOUND

    def __init__(self, trace: Trace) -> None:
        tokens, layers, _ = trace.experts.shape
        never = tokens * layers * 2
        upcoming = np.full((layers, trace.shape.num_experts), never, np.float64)
        self._next_use = np.empty(trace.experts.shape)
        rows = np.arange(layers)[:, None]
        for token in range(tokens - 1, -1, -1):
            self._next_use[token] = upcoming[rows, trace.experts[token]]
            upcoming[rows, trace.experts[token]] = token * layers + rows
        self._scores: FloatArray = -upcoming
        self._token = np.zeros(layers, np.int64)

    def begin(self, phase: Phase) -> None:
        pass

    def observe(self, layer: int, ids: IntArray) -> None:
        token = self._token[layer]
        self._scores[layer, ids] = -self._next_use[token : token + len(ids), layer]  # of repeated ids the last counts
        self._token[layer] += len(ids)

    def keep_scores(self, layer: int) -> FloatArray:
        return self._scores
