"""The slow, obvious twins of the native kernels: weights made wide again, then torch in float32.

They round nothing on the way, where the native ones round activations to bfloat16 or to 8 bits: results agree within
that rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moeinf import _native
from moeinf.types import ByteArray, ExpertForm, Float32Array, Format, IntArray, format_bytes

# A matrix or bias: format, rows, cols, offset in the block in bytes; see _native.ExpertKernel for more.
ExpertPart = (
    tuple[Format, int, int, int]
    | tuple[Format, int, int, int, int, int]
    | tuple[Format, int, int, int, int, int, Sequence[float]]
)

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}
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
    _native.dequantise(format, data, rows, cols, out)
    return torch.from_numpy(out)


def expert_output(x: Tensor, weights: Mapping[str, Tensor], form: ExpertForm) -> Tensor:
    """x [n, hidden] -> what one expert makes of it; weights by the name of the part, biases [rows, 1]."""

    def product(name: str, x: Tensor) -> Tensor:
        y = x @ weights[name].T
        return y + weights[f"{name}_bias"].T if form.biased else y

    up = product("up", x)
    if not form.gated:
        return product("down", _ACTIVATIONS[form.activation](up))
    gate = product("gate", x)
    if form.activation == "swiglu_clamped":
        gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
        return product("down", (up + 1) * gate * torch.sigmoid(1.702 * gate))
    if form.activation == "silu_clamped":
        return product("down", up.clamp(-form.limit, form.limit) * torch.nn.functional.silu(gate.clamp(max=form.limit)))
    if form.activation == "clamped_silu":
        return product("down", up.clamp(-form.limit, form.limit) * torch.nn.functional.silu(gate).clamp(max=form.limit))
    if form.activation == "softcapped":
        capped = form.gate_limit * torch.tanh(gate / form.gate_limit) * torch.sigmoid(gate)
        return product("down", capped * (form.limit * torch.tanh(up / form.limit) if form.limit else up))
    return product("down", _ACTIVATIONS[form.activation](gate) * up)


def _shift(expert: int, start: int = 0, step: int = 0, scales: Sequence[float] = ()) -> int:
    return (start + expert * step) % 4096


def _scale(expert: int, start: int = 0, step: int = 0, scales: Sequence[float] = ()) -> float:
    return scales[expert] if scales else 1.0


class ReferenceExpertKernel:
    """_native.ExpertKernel, one expert and one matrix at a time."""

    def __init__(
        self,
        memory: ByteArray,
        parts: Mapping[str, ExpertPart] | Sequence[Mapping[str, ExpertPart]],
        form: ExpertForm | None = None,
    ) -> None:
        self._memory = memory
        self._layers = [parts] if isinstance(parts, Mapping) else parts
        self._form = form or ExpertForm()
        self._outputs: dict[int, Tensor] = {}  # [tokens routed to the expert, hidden]
        self._has_begun = False
        self._norms: dict[int, tuple[Float32Array, float]] = {}

    def norm_outputs(self, layer: int, scale: Float32Array, eps: float) -> None:
        self._norms[layer] = scale, eps

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        """The experts routed to, ascending, and how many tokens each has."""
        self._parts = self._layers[layer if len(self._layers) > 1 else 0]
        self._norm = self._norms.get(layer)
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
            weights = {
                name: _scale(expert, *more)
                * widened(self._memory[offset + at + _shift(expert, *more) :], format, rows, cols)
                for name, (format, rows, cols, at, *more) in self._parts.items()
            }
            self._outputs[expert] = expert_output(torch.from_numpy(self._hidden[tokens]), weights, self._form)

    def put(self, experts: IntArray, rows: Float32Array) -> None:
        """Takes outputs that were computed elsewhere; those of experts[0] first, each expert's by token."""
        self._check_rows(experts, rows)
        if set(experts.tolist()) & set(self._outputs):
            raise ValueError("an expert was computed before")
        for expert in experts.tolist():
            count = int((self._ids == expert).sum())
            self._outputs[expert], rows = torch.from_numpy(rows[:count].copy()), rows[count:]

    def get(self, experts: IntArray, rows: Float32Array) -> None:
        """Copies outputs that were computed here."""
        self._check_rows(experts, rows)
        if not set(experts.tolist()) <= set(self._outputs):
            raise ValueError("an expert was not computed")
        rows[:] = torch.cat([self._outputs[expert] for expert in experts.tolist()]).numpy()

    def _check_rows(self, experts: IntArray, rows: Float32Array) -> None:
        if not self._has_begun:
            raise ValueError("outputs need a begin before them")
        counts = [int((self._ids == expert).sum()) for expert in experts.tolist()]
        if not all(counts) or sum(counts) != len(rows):
            raise ValueError("outputs are of experts that tokens were routed to, one for each")

    def finish(self, out: Float32Array) -> None:
        """out [tokens, hidden] += the weighted outputs, one after the other. ValueError where one is missing."""
        if not self._has_begun or set(np.unique(self._ids).tolist()) != set(self._outputs):
            raise ValueError("finish needs a begin, and every expert computed")
        self._has_begun = False
        for token, (ids, weights) in enumerate(zip(self._ids.tolist(), self._weights, strict=True)):
            for expert, weight in zip(ids, weights, strict=True):
                row = np.nonzero((self._ids == expert).any(axis=1))[0].tolist().index(token)
                output = self._outputs[expert][row].numpy()
                if self._norm is not None:
                    weight = weight / np.sqrt(np.square(output * self._norm[0]).mean() + self._norm[1])
                out[token] += weight * output
