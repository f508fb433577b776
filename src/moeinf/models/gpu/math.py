"""ArrayMath on a GPU: torch tensors, nothing that waits for the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class TorchMath:
    """moeinf.models.layers.array_math.ArrayMath."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def relu(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def softplus(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        return torch.clamp(x, low, high)

    def integers(self, x: Tensor) -> Tensor:
        return x.long()

    def where(self, condition: Tensor, x: Tensor, y: Tensor | float) -> Tensor:
        return torch.where(condition, x, y)

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(list(parts), axis)

    def einsum(self, spec: str, *operands: Tensor) -> Tensor:
        return torch.einsum(spec, *operands)

    def zeros(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)

    def of_host(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def to_host(self, x: Tensor) -> np.ndarray:
        values: np.ndarray = x.cpu().numpy()
        return values

    def sum(self, x: Tensor, axis: int, keepdims: bool) -> Tensor:
        return x.sum(axis, keepdim=keepdims)

    def max(self, x: Tensor, axis: int, keepdims: bool) -> Tensor:
        return x.amax(axis, keepdim=keepdims)

    def solve_unit_lower(self, a: Tensor, b: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True)
        return solution

    def top_k(self, x: Tensor, k: int) -> Tensor:
        return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]

    def take(self, x: Tensor, indices: Tensor) -> Tensor:
        return torch.gather(x, -1, indices.long())
