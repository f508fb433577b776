"""Layers on a GPU: float32 torch tensors in, the device's kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.device import Device
from moeinf.gpu.matrix import MAX_ROWS, DeviceMatrix, DeviceRouting
from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.gpu.beams import DeviceBeams, past_shape
from moeinf.models.gpu.latent import DeviceLatentCore
from moeinf.models.gpu.math import TorchMath
from moeinf.models.layers.delta_net import DeltaConfig, DeltaNet
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import AttentionConfig, NormKind
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.weights import Embedding, StoredTensor, TensorBytes, in_memory, vector
from moeinf.types import DType, Float32Array

_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class DeviceKVState:
    """Keys and values of one layer: [kv_heads, capacity, head_dim]."""

    rewinds = True

    def __init__(self, device: torch.device, shape: tuple[int, int, int], dtype: DType) -> None:
        self.keys = torch.zeros(shape, dtype=_TORCH_DTYPES[dtype], device=device)
        self.values = torch.zeros(shape, dtype=_TORCH_DTYPES[dtype], device=device)

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read


class DevicePlaces(NamedTuple):
    """The places of one pass: tables over the whole context, and where in them its first token is."""

    cos: Tensor  # f32 [context, rotary_dim / 2]
    sin: Tensor
    position: Tensor  # int32 [1]: what captured work reads
    start: int  # the same number, for work that is not captured


class DeviceLayers:
    """moeinf.models.layers.protocol.Layers over the kernels of a device. Embeddings are looked up in host memory."""

    def __init__(
        self,
        device: Device,
        ops: Ops,
        tensors: Mapping[str, TensorBytes],
        lookups: Mapping[str, StoredTensor],
        dtype: DType,
        context: int,
        program: DecodeProgram,
    ) -> None:
        """tensors: what is computed with, `lookups`: embeddings by row, in host memory. context: tokens at most.

        A tensor is copied to the device, piece by piece, when a layer asks for it.
        """
        self.dtype: DType = dtype
        self.device = device
        self.ops = ops
        self.math = TorchMath(device.kind)
        self.program = program
        self._tensors = tensors
        self._lookups = lookups
        self.context = context
        self._staging: Tensor | None = None  # f32, pinned: of what goes to the device
        self._logits: Tensor | None = None  # and of what comes from it
        self._input: Tensor | None = None
        self._spare: Tensor | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._lookups

    # ---- weights on the device

    def matrix(self, name: str) -> DeviceMatrix:
        return self.stacked([name])

    def stacked(self, names: Sequence[str]) -> DeviceMatrix:
        """Matrices of one format as one, row below row."""
        tensors = [self._tensors[name] for name in names]
        data = torch.empty(sum(t.num_bytes for t in tensors), dtype=torch.uint8, device=self.device.kind)
        at = 0
        for tensor in tensors:
            for piece in tensor.pieces():
                data[at : at + len(piece)].copy_(torch.from_numpy(piece))  # which waits: the piece is overwritten next
                at += len(piece)
        return DeviceMatrix(data, tensors[0].format, sum(t.shape[0] for t in tensors), tensors[0].shape[1])

    def format_of(self, name: str) -> str:
        return self._tensors[name].format

    def vector(self, name: str) -> Tensor:
        """A norm or a bias, f32."""
        return torch.from_numpy(vector(in_memory(self._tensors[name]))).to(self.device.kind)

    def norm_weight(self, name: str, kind: NormKind) -> Tensor:
        """What multiplies."""
        return self.vector(name) + 1 if kind == "rms+1" else self.vector(name)

    # ---- layers

    def embedding(self, name: str) -> Callable[[Sequence[int]], Tensor]:
        look_up = Embedding(self._lookups[name])
        return lambda ids: self._upload(look_up(ids))

    def rotary(self, rope: Rope | None, context_length: int) -> DeviceRotary:
        return DeviceRotary(self.device.kind, rope, min(context_length, self.context))

    def attention(
        self, config: AttentionConfig, prefix: str, norm: str, layer: int, residual: float = 1.0
    ) -> DeviceAttention:
        return DeviceAttention(self, config, prefix, norm, layer, residual)

    def latent_core(
        self, keys_values: str, num_heads: int, plain_dim: int, rope: Rope, scale: float, layer: int
    ) -> DeviceLatentCore:
        matrix, dtype = self.matrix(keys_values), _TORCH_DTYPES[self.dtype]
        assert matrix.format in _TORCH_DTYPES, "the plan leaves out of `matrices` what is multiplied by head"
        weights = matrix.data.view(_TORCH_DTYPES[matrix.format]).view(num_heads, -1, matrix.cols)
        return DeviceLatentCore(self.ops.vectors, weights, dtype, plain_dim, rope, scale, layer)

    def beams(
        self, num_heads: int, head_dim: int, scale: float, capacity: int, num_beams: int, bias: Tensor | None
    ) -> DeviceBeams:
        shape = past_shape(num_heads, head_dim, capacity, num_beams)
        if num_beams > 1 and (self._spare is None or self._spare.shape != shape):
            self._spare = torch.zeros(shape, device=self.device.kind)
        return DeviceBeams(
            self.ops.vectors, self.device.kind, num_heads, head_dim, scale, capacity, num_beams, bias, self._spare
        )

    def delta_net(self, config: DeltaConfig, prefix: str, norm: str, layer: int) -> DeltaNet:
        return DeltaNet(self, config, prefix, norm, layer)

    def softmax_router(
        self, gate: str, norm: str, eps: float, top_k: int, normalise: bool, kind: NormKind = "rms"
    ) -> DeviceSoftmaxRouter:
        return DeviceSoftmaxRouter(self, gate, norm, eps, top_k, normalise, kind)

    def gated_mlp(
        self, prefix: str, norm: str, eps: float, residual: float = 1.0, kind: NormKind = "rms"
    ) -> DeviceGatedMLP:
        return DeviceGatedMLP(self, prefix, norm, eps, residual, kind)

    def begin_pass(self, num_tokens: int) -> None:
        pass  # kernels and cuBLAS go by the rows of each call

    def linear(self, name: str, bias: str | None = None) -> Callable[[Tensor], Tensor]:
        matrix, added = self.matrix(name), None if bias is None else self.vector(bias)
        return lambda x: self.product(x.contiguous(), matrix, added)

    def norm(self, name: str, eps: float, kind: NormKind = "rms") -> Callable[[Tensor], Tensor]:
        weight = self.norm_weight(name, kind)
        if kind == "layer":
            bias = self.vector(name.removesuffix("weight") + "bias")
            return lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)
        return lambda x: self.normed(x.contiguous().view(-1, x.shape[-1]), weight, eps).view(x.shape)

    def routing(self, ids: Tensor, weights: Tensor) -> DeviceRouting:
        return DeviceRouting(ids.to(torch.int32).contiguous(), weights.contiguous())

    def head(
        self, matrix: str, norm: str, eps: float, kind: NormKind = "rms", scale: float = 1.0, bias: str | None = None
    ) -> Callable[[Tensor], Tensor]:
        last_norm, product = self.norm(norm, eps, kind), self.linear(matrix, bias)
        return lambda x: product(last_norm(x)) * scale if scale != 1.0 else product(last_norm(x))

    def carry_out(
        self, compute: Callable[[Tensor, DevicePlaces], Tensor], x: Tensor, places: DevicePlaces, cache: Cache
    ) -> Float32Array:
        """Waits for the device; a decode step, of one token of each beam, becomes a captured program."""
        if len(x) > min(cache.beams, MAX_ROWS):
            return self._to_host(compute(x, places))
        if self._input is None or self._input.shape != x.shape:
            self._input = torch.empty_like(x)
        given = self._input.copy_(x)
        return self._to_host(self.program.run(lambda: compute(given, places), (cache, len(x))))

    # ---- what the layers share

    def normed(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        self.ops.vectors.rms_norm(x, weight, eps, out)
        return out

    def product(self, x: Tensor, matrix: DeviceMatrix, bias: Tensor | None = None) -> Tensor:
        out = torch.empty((len(x), matrix.rows), dtype=torch.float32, device=x.device)
        self.ops.matrices.linear(x, matrix, out, bias)
        return out

    def take_staging(self, rows: int, width: int, num_logits: int) -> None:
        """Takes pinned memory for so many rows of embeddings at once, and for what a step gives.

        Before the experts are pinned, behind which a system may have none left. More is taken where it is needed.
        """
        self._staging = self._room(self._staging, rows * width)
        self._logits = self._room(self._logits, num_logits)

    def _room(self, held: Tensor | None, count: int) -> Tensor:
        return held if held is not None and len(held) >= count else self.device.pinned((count,), torch.float32)

    def _upload(self, rows: Float32Array) -> Tensor:
        self._staging = self._room(self._staging, rows.size)
        staged = self._staging[: rows.size].view(rows.shape)
        staged.copy_(torch.from_numpy(rows))
        return staged.to(self.device.kind, non_blocking=True)

    def _to_host(self, logits: Tensor) -> Float32Array:
        self._logits = self._room(self._logits, logits.numel())
        staged = self._logits[: logits.numel()].view(logits.shape)
        staged.copy_(logits, non_blocking=True)
        self.device.synchronise()
        values: Float32Array = staged.numpy().copy()
        return values


class DeviceRotary:
    """Rotary positions, for every place of the context at once."""

    def __init__(self, device: torch.device, rope: Rope | None, context: int) -> None:
        self._device, self._rope, self._context = device, rope, context
        self._tables: dict[Rope | None, tuple[Tensor, Tensor]] = {}
        self._position = torch.zeros(1, dtype=torch.int32, device=device)

    def __call__(self, start: int, num_tokens: int, room: int) -> DevicePlaces:
        self._position.fill_(start)
        return DevicePlaces(*self._of(None if self._rope is None else self._rope.within(room)), self._position, start)

    def _of(self, rope: Rope | None) -> tuple[Tensor, Tensor]:
        if rope not in self._tables:
            cos, sin = (np.empty((0, 0), np.float32),) * 2 if rope is None else rope.tables(0, self._context)
            self._tables[rope] = torch.from_numpy(cos).to(self._device), torch.from_numpy(sin).to(self._device)
        return self._tables[rope]


class DeviceAttention:
    """See Layers.attention."""

    def __init__(
        self, layers: DeviceLayers, config: AttentionConfig, prefix: str, norm: str, layer: int, residual: float
    ) -> None:
        assert config.norm != "layer" or config.qk_norm == "none", "no family has layer norms of heads"
        c, self._layers, self._layer, self._config, self._residual = config, layers, layer, config, residual
        names = [f"{prefix}{n}_proj.weight" for n in "qkv"]
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        self._rows = [queries, keys, keys]
        if len({layers.format_of(name) for name in names}) == 1:  # one product of one token instead of three
            stacked = layers.stacked(names)
            if c.gate:
                _gates_behind(stacked.data.view(stacked.rows, -1)[: 2 * queries], c.num_heads)
            self._stacked: DeviceMatrix | None = stacked
            self._matrices = _cut(self._stacked, [queries * (2 if c.gate else 1), keys, keys])
        else:
            self._stacked = None
            self._matrices = [layers.matrix(name) for name in names]
            if c.gate:
                _gates_behind(self._matrices[0].data.view(2 * queries, -1), c.num_heads)
        biases = [layers.vector(f"{prefix}{n}_proj.bias") for n in "qkv"] if c.bias else []
        if biases and c.gate:
            _gates_behind(biases[0].view(2 * queries, 1), c.num_heads)
        self._biases: Sequence[Tensor | None] = biases or [None, None, None]
        self._bias = torch.cat(biases) if biases else None
        self._output = layers.matrix(f"{prefix}o_proj.weight")
        self._output_bias = layers.vector(f"{prefix}o_proj.bias") * residual if c.output_bias else None
        self._norm = layers.norm(norm, c.norm_eps, c.norm)
        self._q_norm, self._k_norm = (
            None if c.qk_norm == "none" else layers.norm_weight(f"{prefix}{n}_norm.weight", c.norm) for n in "qk"
        )
        self._sinks = layers.vector(f"{prefix}sinks") if c.sinks else None

    def new_state(self, capacity: int) -> DeviceKVState:
        c = self._config
        assert capacity <= self._layers.context, "rotary tables end at the context"
        return DeviceKVState(self._layers.device.kind, (c.num_kv_heads, capacity, c.head_dim), self._layers.dtype)

    def add_to(self, x: Tensor, cache: Cache, places: DevicePlaces) -> None:
        layers, vectors, c = self._layers, self._layers.ops.vectors, self._config
        q, k, v = self._projected(self._norm(x))
        gate = q[:, self._rows[0] :] if c.gate else None
        q = q[:, : self._rows[0]].contiguous() if c.gate else q
        q_norm, k_norm = self._q_norm, self._k_norm
        if c.qk_norm == "full":  # over all heads together, before anything else
            assert q_norm is not None and k_norm is not None
            q, k = layers.normed(q, q_norm, c.norm_eps), layers.normed(k, k_norm, c.norm_eps)
            q_norm = k_norm = None
        state: DeviceKVState = cache.states[self._layer]
        vectors.rope_store(
            q,
            k,
            v,
            q_norm,
            k_norm,
            c.norm_eps,
            c.clip_qkv or 0.0,
            places.cos,
            places.sin,
            places.position,
            state.keys,
            state.values,
            interleaved=c.rope is not None and c.rope.interleaved,
        )
        mixture = torch.empty_like(q)
        scale = c.head_dim**-0.5 if c.scale is None else c.scale
        vectors.attend(
            q, state.keys, state.values, places.position, places.start, c.window or 0, scale, mixture, self._sinks
        )
        if gate is not None:
            mixture *= torch.sigmoid(gate)
        if self._residual != 1.0:
            mixture *= self._residual
        layers.ops.matrices.linear(mixture, self._output, x, self._output_bias, add=True)

    def _projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if len(hidden) == 1 and self._stacked is not None:
            product = self._layers.product(hidden, self._stacked, self._bias)
            q, k, v = torch.split(product, [m.rows for m in self._matrices], dim=1)
            return q, k, v
        q, k, v = (
            self._layers.product(hidden, matrix, bias)
            for matrix, bias in zip(self._matrices, self._biases, strict=True)
        )
        return q, k, v


class DeviceGatedMLP:
    """See Layers.gated_mlp."""

    def __init__(
        self, layers: DeviceLayers, prefix: str, norm: str, eps: float, residual: float, kind: NormKind
    ) -> None:
        self._layers, self._residual = layers, residual
        self._gate, self._up, self._down = (layers.matrix(f"{prefix}{n}_proj.weight") for n in ("gate", "up", "down"))
        self._norm = layers.norm(norm, eps, kind)

    def add_to(self, x: Tensor) -> None:
        layers = self._layers
        hidden = self._norm(x)
        gated = torch.nn.functional.silu(layers.product(hidden, self._gate)) * layers.product(hidden, self._up)
        if self._residual != 1.0:
            gated *= self._residual
        layers.ops.matrices.linear(gated, self._down, x, add=True)


class DeviceSoftmaxRouter:
    """See Layers.softmax_router; ids are int32."""

    def __init__(
        self, layers: DeviceLayers, gate: str, norm: str, eps: float, top_k: int, normalise: bool, kind: NormKind
    ) -> None:
        self._layers, self._top_k, self._normalise = layers, top_k, normalise
        self._gate, self._norm = layers.matrix(gate), layers.norm(norm, eps, kind)

    def __call__(self, x: Tensor) -> tuple[Tensor, DeviceRouting]:
        layers = self._layers
        hidden = self._norm(x)
        logits = layers.product(hidden, self._gate)
        ids = torch.empty((len(x), self._top_k), dtype=torch.int32, device=x.device)
        weights = torch.empty((len(x), self._top_k), dtype=torch.float32, device=x.device)
        layers.ops.vectors.softmax_topk(logits, self._top_k, self._normalise, ids, weights)
        return hidden, DeviceRouting(ids, weights)


def _gates_behind(rows: Tensor, num_heads: int) -> None:
    """Reorders rows, of a query and then a gate for each head, into all queries and then all gates. In place."""
    heads = rows.view(num_heads, 2, -1, rows.shape[1])
    rows.copy_(heads.transpose(0, 1).reshape(rows.shape))


def _cut(matrix: DeviceMatrix, rows: Sequence[int]) -> list[DeviceMatrix]:
    """The matrices that were stacked, without copying."""
    parts = torch.split(matrix.data, [len(matrix.data) // matrix.rows * count for count in rows])
    return [DeviceMatrix(part, matrix.format, count, matrix.cols) for part, count in zip(parts, rows, strict=True)]
