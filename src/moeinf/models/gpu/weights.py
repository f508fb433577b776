"""Dense weights on a GPU, and what is computed with a single one of them: products and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.device import Device
from moeinf.gpu.matrix import DeviceMatrix, DeviceRouting
from moeinf.gpu.ops import Ops
from moeinf.models.gpu.math import TorchMath
from moeinf.models.layers.array_math import Spelled, function_of
from moeinf.models.layers.attention_config import AttentionConfig, NormConfig, NormKind, narrow_heads
from moeinf.models.layers.weights import (
    Embedding,
    StoredTensor,
    TensorBytes,
    as_matrix,
    in_memory,
    transposed,
    vector,
    wider_heads,
)
from moeinf.types import DEVICE_FORMATS, Activation, ByteArray

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_NOWHERE: Final = torch.device("meta")


class DeviceWeights:
    """The dense weights by name. A tensor is copied to the device, piece by piece, when a layer asks for it."""

    spares = 0  # kernels route, and know of no others

    def __init__(
        self,
        device: Device,
        ops: Ops,
        tensors: Mapping[str, TensorBytes],
        lookups: Mapping[str, StoredTensor],
        elsewhere: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """tensors: those that the device computes with; lookups: embeddings by row, which stay in host memory.

        elsewhere: says of a name whether another device has it. What is made of it here has a shape, and no memory.
        """
        self.device, self.ops, self._elsewhere = device, ops, elsewhere
        self.math = TorchMath(device.kind)
        self.fused = Spelled[Tensor](self.math)
        self._tensors, self._lookups = tensors, lookups

    def with_wide_heads(self, config: AttentionConfig, prefix: str) -> DeviceWeights:
        """The same, in which queries and keys that are narrower than values are filled up."""
        narrow = narrow_heads(config, prefix)
        if not narrow:
            return self
        own = {name: in_memory(self._tensors[name]) for name in narrow}
        wide = {name: wider_heads(own[name], heads, config.head_dim) for name, heads in narrow.items()}
        return DeviceWeights(self.device, self.ops, {**self._tensors, **wide}, self._lookups, self._elsewhere)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._lookups

    def rows(self, name: str) -> Embedding:
        """An embedding, whose rows are looked up in host memory."""
        return Embedding(self._lookups[name])

    def matrix(self, name: str) -> DeviceMatrix:
        return self.stacked([name])

    def stacked(self, names: Sequence[str]) -> DeviceMatrix:
        """Matrices of one format as one, row below row."""
        return self._matrix(names[0], [self._tensors[name] for name in names])

    def _matrix(self, name: str, tensors: Sequence[TensorBytes]) -> DeviceMatrix:
        """name: of one of them, which says where they are."""
        assert all(tensor.format in DEVICE_FORMATS for tensor in tensors), "others are converted on their way here"
        elsewhere = self._elsewhere(name)
        kind = _NOWHERE if elsewhere else self.device.kind
        data = torch.empty(sum(t.num_bytes for t in tensors), dtype=torch.uint8, device=kind)
        at = 0
        for tensor in () if elsewhere else tensors:
            for piece in tensor.pieces():
                data[at : at + len(piece)].copy_(torch.from_numpy(piece))  # which waits: the piece is overwritten next
                at += len(piece)
        rows, cols = sum(as_matrix(t.shape)[0] for t in tensors), tensors[0].shape[-1]
        return DeviceMatrix(data, tensors[0].format, rows, cols)

    def format_of(self, name: str) -> str:
        return self._tensors[name].format

    def vector(self, name: str) -> Tensor:
        """A norm or a bias, f32."""
        if self._elsewhere(name):
            return torch.empty(math.prod(self._tensors[name].shape), device=_NOWHERE)
        return torch.from_numpy(vector(in_memory(self._tensors[name]))).to(self.device.kind)

    def table(self, name: str) -> Tensor:
        """A small matrix, f32."""
        return self.vector(name).view(self._tensors[name].shape)

    def norm_weight(self, name: str, kind: NormKind) -> Tensor:
        """What multiplies."""
        return self.vector(name) + 1 if kind == "rms+1" else self.vector(name)

    def linear(
        self, name: str, bias: str | None = None, activation: Activation | None = None
    ) -> Callable[[Tensor], Tensor]:
        matrix, added = self.matrix(name), None if bias is None else self.vector(bias)
        product = partial(self.product, matrix=matrix, bias=added)
        if activation is None:
            return product
        function = function_of(self.math, activation)
        return lambda x: function(product(x))

    def adding(self, name: str) -> Callable[[Tensor, Tensor], None]:
        matrix = self.matrix(name)
        return lambda x, out: self.ops.matrices.linear(x, matrix, out, add=True)

    def transposed(self, name: str) -> Callable[[Tensor], Tensor]:
        return partial(self.product, matrix=self._matrix(name, [transposed(in_memory(self._tensors[name]))]))

    def linears(self, name: str, rows: Sequence[int]) -> list[Callable[[Tensor], Tensor]]:
        whole, found, at = self.matrix(name), list[Callable[[Tensor], Tensor]](), 0
        row_bytes, cols = len(whole.data) // sum(rows), whole.rows * whole.cols // sum(rows)
        for count in rows:
            data = whole.data[at * row_bytes : (at + count) * row_bytes]
            found.append(partial(self.product, matrix=DeviceMatrix(data, whole.format, count, cols)))
            at += count
        return found

    def norm(self, config: NormConfig | None) -> Callable[[Tensor], Tensor]:
        if config is None:
            return lambda x: x
        weight, eps = self.norm_weight(config.name, config.kind), config.eps
        if config.kind in ("layer", "centred"):
            biased = config.kind == "layer"
            bias = self.vector(config.name.removesuffix("weight") + "bias") if biased else None
            return lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)
        if config.groups > 1:
            ones = torch.ones_like(weight[: len(weight) // config.groups])
            return lambda x: self.normed(x.contiguous().view(-1, len(ones)), ones, eps).view(x.shape) * weight
        return lambda x: self.normed(x.contiguous().view(-1, x.shape[-1]), weight, eps).view(x.shape)

    def routing(self, ids: Tensor, weights: Tensor, spares: tuple[Tensor, Tensor, bool] | None = None) -> DeviceRouting:
        return DeviceRouting(ids.to(torch.int32).contiguous(), weights.contiguous())

    def normed(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        self.ops.vectors.rms_norm(x, weight, eps, out)
        return out

    def product(self, x: Tensor, matrix: DeviceMatrix, bias: Tensor | None = None) -> Tensor:
        out = torch.empty((len(x), matrix.rows), dtype=torch.float32, device=x.device)
        self.ops.matrices.linear(x.contiguous(), matrix, out, bias)
        return out


@dataclass(slots=True)
class DeviceMemory:
    """What parts are made with on a GPU."""

    weights: DeviceWeights
    kept: torch.dtype  # of keys and values
    spare: Tensor | None = None  # as large as what beams of one layer have decoded; layers share it

    def rows(self, planes: int, capacity: int, width: int) -> DeviceRows:
        data = torch.zeros((planes, capacity, width), dtype=self.kept, device=self.weights.device.kind)
        return DeviceRows(data, data)

    def floats(self, capacity: int, width: int) -> DeviceRows:
        data = torch.zeros((capacity, width), device=self.weights.device.kind)
        return DeviceRows(data, data[None])


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """As RowsOf. What is saved waits for the device."""

    data: Tensor
    by_plane: Tensor  # the same memory, [planes, capacity, width]

    @property
    def planes(self) -> int:
        return len(self.by_plane)

    @property
    def room(self) -> int:
        return self.by_plane.shape[1]

    @property
    def row_bytes(self) -> int:
        return self.by_plane.shape[2] * self.data.dtype.itemsize

    def save(self, start: int, into: ByteArray) -> None:
        rows = self.by_plane[:, start : start + into.shape[1]]
        into[...] = rows.contiguous().view(torch.uint8).cpu().numpy()

    def load(self, start: int, rows: ByteArray) -> None:
        into = self.by_plane[:, start : start + rows.shape[1]]
        into.copy_(torch.from_numpy(np.ascontiguousarray(rows)).view(into.dtype))
