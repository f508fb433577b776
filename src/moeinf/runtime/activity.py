"""What a model does right now, noted for whoever watches it from another thread."""

from __future__ import annotations

from typing import Final

import numpy as np

from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.types import IntArray, MoeShape


class Activity(Listener):
    """Notes when each expert was used last.

    Numbers only rise, so that several watchers can each compare with what they saw before. The thread that runs the
    model writes, and any thread may read, without a lock: an item of an array, or a number, is read whole. A reader
    may see one layer of a pass noted and the next not yet, which a picture of the machine can bear.
    """

    def __init__(self, shape: MoeShape) -> None:
        self.shape: Final = shape
        self._last_use: IntArray = np.zeros((shape.num_layers, shape.num_experts), np.int64)
        self._rows = list(self._last_use)
        self._last_layer = shape.num_layers - 1
        self._pass = 1

    def observe(self, layer: int, ids: IntArray) -> None:
        self._rows[layer][ids] = self._pass
        if layer == self._last_layer:
            self._pass += 1

    def last_use(self) -> IntArray:
        """Returns [layers, experts] the number of the last pass that used each expert, 0 where none has."""
        last_use: IntArray = self._last_use.copy()
        return last_use
