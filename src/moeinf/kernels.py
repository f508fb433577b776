"""The slow, obvious twins of the native kernels: weights made wide again, then torch in float32.

They round nothing on the way, where the native ones round activations to bfloat16 or to 8 bits: results agree within
that rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moeinf import _native
from moeinf.types import ByteArray, Float32Array, Format, IntArray, format_bytes

ExpertPart = tuple[Format, int, int, int]  # one matrix: format, rows, cols, offset in the block in bytes

_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def reference_linear(x: Float32Array, memory: ByteArray, format: Format, rows: int, cols: int) -> Float32Array:
    """x [n, cols] times the transpose of the matrix [rows, cols] that `memory` holds: [n, rows]."""
    product: Float32Array = (torch.from_numpy(x) @ widened(memory, format, rows, cols).T).numpy()
    return product


def widened(memory: ByteArray, format: Format, rows: int, cols: int) -> Tensor:
    """The weights [rows, cols] that `memory` begins with, in float32."""
    data = memory[: format_bytes(format, (rows, cols))]
    if format in _TORCH_DTYPES:
        return torch.frombuffer(bytearray(data), dtype=_TORCH_DTYPES[format]).float().view(rows, cols)
    out = np.empty((rows, cols), np.float32)
    _native.dequantize(format, data, rows, cols, out)
    return torch.from_numpy(out)


class ReferenceExpertKernel:
    """_native.ExpertKernel, one expert and one matrix at a time."""

    def __init__(self, memory: ByteArray, parts: Sequence[ExpertPart]) -> None:
        """parts: gate and up [intermediate, hidden], down [hidden, intermediate]."""
        self._memory = memory
        self._parts = parts
        self._outputs: dict[int, Tensor] = {}  # [tokens routed to the expert, hidden]
        self._has_begun = False

    def begin(self, hidden: Float32Array, ids: IntArray, weights: Float32Array) -> tuple[IntArray, IntArray]:
        """The experts routed to, ascending, and how many tokens each has."""
        self._hidden, self._ids, self._weights = hidden.copy(), ids.copy(), weights.copy()
        self._outputs.clear()
        self._has_begun = True
        return np.unique(ids, return_counts=True)

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        """The outputs of `experts`; ValueError for one that no token was routed to, or that was computed before."""
        if not self._has_begun:
            raise ValueError("compute needs a begin before it")
        for expert, offset in zip(experts.tolist(), offsets.tolist(), strict=True):
            tokens, _ = np.nonzero(self._ids == expert)
            if not len(tokens) or expert in self._outputs:
                raise ValueError(f"expert {expert} was not routed to, or was computed before")
            gate, up, down = (widened(self._memory[offset + at :], format, rows, cols)
                              for format, rows, cols, at in self._parts)
            x = torch.from_numpy(self._hidden[tokens])
            self._outputs[expert] = (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def finish(self, out: Float32Array) -> None:
        """out [tokens, hidden] += the weighted outputs, one after the other. ValueError where one is missing."""
        if not self._has_begun or set(np.unique(self._ids).tolist()) != set(self._outputs):
            raise ValueError("finish needs a begin, and every expert computed")
        self._has_begun = False
        for token, (ids, weights) in enumerate(zip(self._ids.tolist(), self._weights, strict=True)):
            for expert, weight in zip(ids, weights, strict=True):
                row = np.nonzero((self._ids == expert).any(axis=1))[0].tolist().index(token)
                out[token] += weight * self._outputs[expert][row].numpy()
