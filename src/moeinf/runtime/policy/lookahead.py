"""Prediction by the next layer's own router, applied before this layer's experts have run."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.types import Float32Array, FloatArray, IntArray, MoeShape, Phase


class LookAheadPredictor(Predictor):
    """Takes the model's own guess at the next MoE layer (see Experts.expect) as the likelihood of that layer."""

    name: Final = "look-ahead"
    wants_guesses = True

    def __init__(self, shape: MoeShape) -> None:
        self._shape = shape
        self._expected_layer = -1
        self._likelihood: FloatArray = np.zeros((shape.num_layers, shape.num_experts))

    def begin(self, phase: Phase) -> None:
        self._expected_layer = -1

    def observe(self, layer: int, ids: IntArray) -> None:
        if layer == self._expected_layer:
            self._expected_layer = -1

    def restart(self) -> None:
        self._expected_layer = -1

    def expect(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        """The guess: `ids` will be routed to in `layer`, with `weights`, both [tokens, top_k].

        What the router is sure of comes true more often than its last choice, so an expert is as likely as its weight.
        """
        self._likelihood[self._expected_layer] = 0.0
        self._expected_layer, row = layer, self._likelihood[layer]
        total = float(weights.sum())  # 0 where tokens use no expert
        scale = self._shape.top_k / total if total else 0.0  # the row sums to top_k, as probabilities of use do
        if len(ids) == 1:
            np.add.at(row, ids[0], weights[0] * scale)  # a token may name an expert again, with a weight of 0
        else:
            row[:] = np.bincount(ids.ravel(), weights.ravel() * scale, self._shape.num_experts)

    def predict(self, layer: int) -> FloatArray | None:
        """Likelihoods up to the layer expected, all in its row; None if the model's guess was for no later layer."""
        return self._likelihood[layer + 1 : self._expected_layer + 1] if self._expected_layer > layer else None
