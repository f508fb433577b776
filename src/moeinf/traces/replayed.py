"""A trace's routing in place of the router's choice: real locality where no real weights are at hand."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from moeinf.traces.guesses import BLOCK_TOKENS, Guesses
from moeinf.traces.trace import Trace
from moeinf.types import Float32Array, Routing


class RunsExperts(Protocol):
    """What of the model's experts is called: see moeinf.models.layers.protocol.ExpertsOf."""

    @property
    def wants_expectations(self) -> bool: ...

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None: ...

    def expect(self, layer: int, guess: Routing) -> None: ...

    def norm_outputs(self, layer: int, scale: Float32Array, eps: float) -> None: ...


class RecordedRouting:
    """The routing and the guesses of a trace, from a token on, for the passes that a model runs one after the other."""

    def __init__(self, trace: Trace, guesses: Guesses | None = None) -> None:
        """Without weights in the trace, the experts of a token weigh the same; without guesses, look-ahead has none."""
        equal = np.full(trace.experts.shape, np.float32(1 / trace.shape.top_k), np.float32)
        self._ids = _by_layer(trace.experts)
        self._weights = _by_layer(equal if trace.weights is None else trace.weights)
        self._guesses = None if guesses is None else _all_of(guesses, trace)
        self.top_k = trace.shape.top_k
        self.seek(0)

    def seek(self, token: int) -> None:
        """The next pass begins with that token of the trace."""
        self._first, self._num_tokens, self._last_layer = token, 0, -1

    def routing(self, layer: int, num_tokens: int) -> Routing:
        """That of the running pass, of so many tokens, in `layer`; a layer not behind the last one begins another."""
        rows = self._rows(layer, num_tokens)
        self._last_layer = layer
        return Routing(self._ids[layer, rows], self._weights[layer, rows])

    def guess(self, layer: int, num_tokens: int) -> Routing | None:
        """What was expected of `layer` before the layer in front of it ran; None where nothing was."""
        rows = self._rows(layer, num_tokens)
        if self._guesses is None:
            return None
        guess = Routing(self._guesses.ids[layer, rows], self._guesses.weights[layer, rows])
        return guess if guess.weights.any() else None

    def _rows(self, layer: int, num_tokens: int) -> slice:
        if layer <= self._last_layer:
            self.seek(self._first + self._num_tokens)
        self._num_tokens = num_tokens
        return slice(self._first, self._first + num_tokens)


def _by_layer(array: Any) -> Any:
    """[tokens, layers, top_k] as [layers, tokens, top_k], so that what a pass takes of a layer lies together."""
    return np.ascontiguousarray(array.swapaxes(0, 1))


def _all_of(guesses: Guesses, trace: Trace) -> Routing:
    """Every guess, [layers, tokens, guesses], so that none is drawn while a token is timed; weight 0: not guessed."""
    blocks = [slice(first, first + BLOCK_TOKENS) for first in range(0, trace.num_tokens, BLOCK_TOKENS)]
    found = {
        (layer, number): guess
        for number, block in enumerate(blocks)
        for layer in range(trace.shape.num_layers)
        if (guess := guesses.at(block.start, min(block.stop, trace.num_tokens), layer)) is not None
    }
    width = max((guess.ids.shape[1] for guess in found.values()), default=1)
    sizes = trace.shape.num_layers, trace.num_tokens, width
    every = Routing(np.zeros(sizes, np.int64), np.zeros(sizes, np.float32))
    for (layer, number), guess in found.items():
        every.ids[layer, blocks[number], : guess.ids.shape[1]] = guess.ids
        every.weights[layer, blocks[number], : guess.ids.shape[1]] = guess.weights
    return every


class ReplayedExperts:
    """The experts of a model, routed to as a trace says; the router's own choice is computed, and dropped."""

    def __init__(self, experts: RunsExperts, recorded: RecordedRouting) -> None:
        self._experts = experts
        self._recorded = recorded
        self.norm_outputs = experts.norm_outputs

    @property
    def wants_expectations(self) -> bool:
        return self._experts.wants_expectations

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        self._experts.run(layer, hidden, self._recorded.routing(layer, len(hidden)), out)

    def expect(self, layer: int, guess: Routing) -> None:
        recorded = self._recorded.guess(layer, len(guess.ids))
        if recorded is not None:
            self._experts.expect(layer, recorded)
