"""The router by softmax on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.models.gpu.rotary import DevicePositions
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.routers import SoftmaxRouterPart


class DeviceSoftmaxRouter:
    """A SoftmaxRouterPart; ids are int32."""

    def __init__(self, memory: DeviceMemory, part: SoftmaxRouterPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        weights = self._weights = memory.weights
        self._top_k, self._normalise = part.top_k, part.normalise
        self._gate, self._norm = weights.matrix(part.gate), weights.norm(part.norm)

    def __call__(self, x: Tensor) -> tuple[Tensor, DeviceRouting]:
        weights = self._weights
        hidden = self._norm(x)
        logits = weights.product(hidden, self._gate)
        ids = torch.empty((len(x), self._top_k), dtype=torch.int32, device=x.device)
        shares = torch.empty((len(x), self._top_k), dtype=torch.float32, device=x.device)
        weights.ops.vectors.softmax_topk(logits, self._top_k, self._normalise, ids, shares)
        return hidden, DeviceRouting(ids, shares)
