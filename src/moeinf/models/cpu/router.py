"""The router by softmax on the CPU."""

from __future__ import annotations

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.routers import SoftmaxRouterPart
from moeinf.types import Float32Array, IntArray, Routing, Spares


class SoftmaxRouter:
    """A SoftmaxRouterPart. What it returns of a single token holds until it is called again."""

    def __init__(self, memory: HostMemory, part: SoftmaxRouterPart[Float32Array, Angles, Routing]) -> None:
        weights, norm, top_k = memory.weights, part.norm, part.top_k
        assert norm is None or norm.kind not in ("layer", "centred"), (
            "no family has a layer norm in front of this router"
        )
        norm_weight = None if norm is None else weights.norm_vectors(norm.name, norm.kind)[0]
        matrix, eps = weights.linear(part.gate).native, 0.0 if norm is None else norm.eps
        self._native = _native.RouterLayer(weights.kernels, matrix, norm_weight, eps, top_k, part.normalise)
        experts, self._cols = weights.tensors[part.gate].shape
        self._top_k, self._spares, self._keeps_sum = top_k, min(weights.spares, experts - top_k), part.normalise
        self._of_token = self._room(1)  # new arrays take as long as the norm and the choice together

    def __call__(self, x: Float32Array) -> tuple[Float32Array, Routing]:
        hidden, routing = self._of_token if len(x) == 1 else self._room(len(x))
        if routing.spares is None:
            self._native.run(x, hidden, routing.ids, routing.weights)
        else:
            spares = routing.spares
            self._native.run(x, hidden, routing.ids, routing.weights, spares.ids, spares.weights)
        return hidden, routing

    def _room(self, tokens: int) -> tuple[Float32Array, Routing]:
        spares = Spares(*_choice(tokens, self._spares), self._keeps_sum) if self._spares else None
        return np.empty((tokens, self._cols), np.float32), Routing(*_choice(tokens, self._top_k), spares)


def _choice(tokens: int, experts: int) -> tuple[IntArray, Float32Array]:
    return np.empty((tokens, experts), np.int64), np.empty((tokens, experts), np.float32)
