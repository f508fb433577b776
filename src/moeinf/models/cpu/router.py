"""The router by softmax on the CPU."""

from __future__ import annotations

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.routers import SoftmaxRouterPart
from moeinf.types import Float32Array, Routing


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
        self._cols, self._top_k = weights.tensors[part.gate].shape[1], top_k
        self._of_token = self._room(1)  # new arrays take as long as the norm and the choice together

    def __call__(self, x: Float32Array) -> tuple[Float32Array, Routing]:
        hidden, routing = self._of_token if len(x) == 1 else self._room(len(x))
        self._native.run(x, hidden, routing.ids, routing.weights)
        return hidden, routing

    def _room(self, tokens: int) -> tuple[Float32Array, Routing]:
        ids, weights = np.empty((tokens, self._top_k), np.int64), np.empty((tokens, self._top_k), np.float32)
        return np.empty((tokens, self._cols), np.float32), Routing(ids, weights)
