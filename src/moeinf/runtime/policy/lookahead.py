"""Prediction by the next layer's own router, applied before this layer's experts have run."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.types import Float32Array, FloatArray, IntArray, MoeShape, Phase

AT_FIRST: Final = 0.75  # how likely a named expert is before anything is known
PRIOR: Final = 2.0  # guesses that this counts for
MEMORY: Final = 4096.0  # guesses; older ones fade


class _Guess(NamedTuple):
    ids: IntArray  # [tokens, places], best first
    named: FloatArray  # 1 where a place names an expert, 0 where it only fills the row


class LookAheadPredictor(Predictor):
    """Takes the model's own guess at the next MoE layer (see Experts.expect), and learns how often guesses are right.

    An expert is as likely as those at its place of a guess, best first, have been in this layer: layers differ more in
    how well their state tells the next routing than the weights of one guess differ in what they are worth.
    """

    name: Final = "look-ahead"
    wants_guesses = True

    def __init__(self, shape: MoeShape) -> None:
        places = shape.num_layers, shape.num_experts  # a guess may name more than top_k
        self._named: FloatArray = np.full(places, PRIOR)
        self._right: FloatArray = np.full(places, PRIOR * AT_FIRST)
        self._likelihood: FloatArray = np.zeros(places)  # a row of zeros but where a guess is open
        self._open: dict[int, _Guess] = {}  # by layer: that of layer l + 1 is told before the routing of layer l

    def begin(self, phase: Phase) -> None:
        self._forget()

    def restart(self) -> None:
        self._forget()

    def _forget(self) -> None:
        for layer in self._open:
            self._likelihood[layer] = 0.0
        self._open.clear()

    def observe(self, layer: int, ids: IntArray) -> None:
        guess = self._open.pop(layer, None)
        if guess is None:
            return
        self._likelihood[layer] = 0.0
        if len(ids) == len(guess.ids):
            self._learn(layer, guess, ids)

    def _learn(self, layer: int, guess: _Guess, ids: IntArray) -> None:
        came = (guess.ids[:, :, None] == ids[:, None, :]).any(2) * guess.named
        places = came.shape[1]
        named, right = self._named[layer, :places], self._right[layer, :places]
        named += guess.named.sum(0)
        right += came.sum(0)
        if named[0] > MEMORY:
            fading = MEMORY / 2 / named
            named *= fading
            right *= fading

    def expect(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        """The guess: `ids` will be routed to in `layer`, with `weights`, both [tokens, places], best first.

        An id of weight 0 is not guessed: it fills a place. The arrays are the caller's again afterwards.
        """
        named = (weights > 0).astype(np.float64)
        places = ids.shape[1]
        chances = named * (self._right[layer, :places] / self._named[layer, :places])
        self._open[layer], row = _Guess(ids.copy(), named), self._likelihood[layer]
        if len(ids) == 1:
            row[:] = 0.0
            np.add.at(row, ids[0], chances[0])  # what fills a place may be named at another
        else:
            row[:] = np.bincount(ids.ravel(), chances.ravel() / len(ids), len(row))

    def predict(self, layer: int) -> FloatArray | None:
        """Likelihoods up to the last layer that there is a guess for; None if there is none behind this one."""
        last = max(self._open, default=-1)
        return self._likelihood[layer + 1 : last + 1] if last > layer else None
