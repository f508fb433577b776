"""Norms of experts' outputs on a device, each before it is weighed."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_AT_ONCE: Final = 1024  # outputs, whose squares exist at a time


class OutputNorms:
    """By layer, the factors [hidden] of outputs whose rms weights are divided by, and what is added to mean squares."""

    def __init__(self) -> None:
        self._of_layer: dict[int, tuple[Tensor, float]] = {}

    def add(self, layer: int, scale: Tensor, eps: float) -> None:
        self._of_layer[layer] = scale, eps

    def weights(self, layer: int, outputs: Tensor, weights: Tensor) -> Tensor:
        """weights [tokens, k] as outputs [tokens * k, hidden] are to be weighed. Waits for nothing."""
        found = self._of_layer.get(layer)
        if found is None:
            return weights
        scale, eps = found
        means = [(some * scale).square().mean(-1) for some in outputs.split(_AT_ONCE)]
        return weights * torch.rsqrt(torch.cat(means) + eps).reshape(weights.shape)
