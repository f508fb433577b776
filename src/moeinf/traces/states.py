"""The hidden states of a request as they come, one before each layer's attention."""

from __future__ import annotations

import numpy as np

from moeinf.traces.stored_states import HalfArray
from moeinf.types import Float32Array


class StateNotes:
    """Keeps the states of whole passes, which visit every layer."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._running: dict[int, HalfArray] = {}  # of the pass that runs, by layer
        self._passes: list[HalfArray] = []  # [tokens, layers, hidden] of each pass
        self.num_bytes = 0

    def add(self, layer: int, state: Float32Array) -> None:
        """state [tokens, hidden] of the pass that runs; it takes the place of one from a pass that was given up."""
        self._running[layer] = state.astype(np.float16)

    def end_pass(self) -> None:
        states = np.stack([self._running[layer] for layer in range(self._num_layers)], axis=1)
        self._passes.append(states)
        self._running.clear()
        self.num_bytes += states.nbytes

    def together(self) -> HalfArray:
        """All passes, [tokens, layers, hidden]."""
        return np.concatenate(self._passes)
