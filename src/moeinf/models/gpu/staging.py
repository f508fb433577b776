"""Pinned host memory through which a pass is given its input and gives back its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.device import Device
from moeinf.types import Float32Array


class Staging:
    """Two pieces of pinned memory, which grow where a pass needs more."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._input: Tensor | None = None  # f32: what goes to the device
        self._output: Tensor | None = None  # f32: what comes from it

    def take(self, rows: int, width: int, num_logits: int) -> None:
        """Takes pinned memory for so many rows of embeddings at once, and for what a step gives.

        Before the experts are pinned, behind which a system may have none left. More is taken where it is needed.
        """
        self._input = self._room(self._input, rows * width)
        self._output = self._room(self._output, num_logits)

    def _room(self, held: Tensor | None, count: int) -> Tensor:
        return held if held is not None and len(held) >= count else self._device.pinned((count,), torch.float32)

    def upload(self, rows: Float32Array) -> Tensor:
        self._input = self._room(self._input, rows.size)
        staged = self._input[: rows.size].view(rows.shape)
        staged.copy_(torch.from_numpy(rows))
        return staged.to(self._device.kind, non_blocking=True)

    def to_host(self, logits: Tensor) -> Float32Array:
        self._output = self._room(self._output, logits.numel())
        staged = self._output[: logits.numel()].view(logits.shape)
        staged.copy_(logits, non_blocking=True)
        self._device.synchronise()
        values: Float32Array = staged.numpy().copy()
        return values
