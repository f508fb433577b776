"""Every expert in memory: the slow, obvious way, with which streamed experts are compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeinf.runtime.experts import ExpertKernel
from moeinf.types import Float32Array, Routing


class ResidentExperts:
    """moeinf.models.layers.protocol.Experts, all of them in memory and computed one after the other."""

    wants_expectations = False

    def __init__(self, kernel: ExpertKernel, offset: Callable[[int, int], int]) -> None:
        """offset(layer, expert): where the expert's block begins in the kernel's memory."""
        self._kernel = kernel
        self._offset = offset
        self.norm_outputs = kernel.norm_outputs

    def run(self, layer: int, hidden: Float32Array, routing: Routing, out: Float32Array) -> None:
        experts, _ = self._kernel.begin(hidden, routing.ids, routing.weights, layer)
        for expert in experts.tolist():
            self._kernel.compute(np.array([expert]), np.array([self._offset(layer, expert)]))
        self._kernel.finish(out)

    def expect(self, layer: int, guess: Routing) -> None:
        pass
