"""Predictions that need no model of the routing: baselines for those that do."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.policy.policy_trace import count_ids
from moeinf.types import FloatArray, IntArray, MoeShape


class PopularityPredictor(Predictor):
    """The next layer needs what most tokens needed there: the share of all tokens so far that used each expert.

    Source: Brainstorm (Cui and others, OSDI 2023), which loads ahead by a profile of each layer's popularity. Here the
    profile is counted as tokens come.
    """

    name = "popularity"

    def __init__(self, shape: MoeShape) -> None:
        self._uses: FloatArray = np.zeros((shape.num_layers, shape.num_experts))
        self._tokens = np.zeros(shape.num_layers)

    def observe(self, layer: int, ids: IntArray) -> None:
        self._uses[layer] += count_ids(ids, self._uses.shape[1])
        self._tokens[layer] += len(ids)

    def predict(self, layer: int) -> FloatArray | None:
        tokens = self._tokens[layer + 1 : layer + 2]
        return self._uses[layer + 1 : layer + 2] / tokens if tokens.any() else None


class PreviousTokenPredictor(Predictor):
    """A layer needs what the last token used there, as likely as that was true of all tokens before."""

    name = "previous-token"

    FIRST_SHARE: Final = (1.0, 2.0)  # used again, used: what the share starts from

    def __init__(self, shape: MoeShape) -> None:
        self._last: FloatArray = np.zeros((shape.num_layers, shape.num_experts))  # 1 for what the last token used
        self._seen = False
        self._again, self._used = self.FIRST_SHARE

    def observe(self, layer: int, ids: IntArray) -> None:
        last = self._last[layer]
        if len(ids) == 1 and last.any():
            self._again += last[ids[0]].sum()
            self._used += len(ids[0])
        last[:] = 0.0
        last[ids[-1]] = 1.0
        self._seen = True

    def restart(self) -> None:
        self._last[:] = 0.0

    def predict(self, layer: int) -> FloatArray | None:
        return self._last[layer + 1 :] * (self._again / self._used) if self._seen else None
