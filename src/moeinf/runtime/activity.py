"""What a model does right now, counted for whoever watches it from another thread."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from moeinf.types import IntArray, MoeShape, Phase

UseCounts = npt.NDArray[np.uint32]


class Activity:
    """moeinf.runtime.experts.Observer: counts the use of each expert, and the tokens that were decoded.

    Counts only rise, so that several watchers can each compare with what they saw before. The thread that runs the
    model writes, and any thread may read, without a lock: an item of an array, or a number, is read whole. A reader
    may see one layer of a pass counted and the next not yet, which a picture of the machine can bear.
    """

    def __init__(self, shape: MoeShape) -> None:
        self.shape: Final = shape
        self.decoded_tokens = 0
        self._uses: UseCounts = np.zeros((shape.num_layers, shape.num_experts), np.uint32)
        self._rows = list(self._uses)
        self._last_layer = shape.num_layers - 1
        self._decoding = False

    def begin(self, phase: Phase) -> None:
        self._decoding = phase == "decode"

    def observe(self, layer: int, ids: IntArray) -> None:
        self._rows[layer][ids.ravel()] += 1
        if self._decoding and layer == self._last_layer:
            self.decoded_tokens += 1

    def uses(self) -> UseCounts:
        """Returns [layers, experts] how many passes have used each expert, counted modulo 2**32."""
        uses: UseCounts = self._uses.copy()
        return uses
