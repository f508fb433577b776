"""Layers on a GPU: float32 torch tensors in, the device's kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from moeinf.gpu.matrix import MAX_ROWS, DeviceRouting
from moeinf.gpu.program import DecodeProgram
from moeinf.models.gpu.attention import DeviceAttention
from moeinf.models.gpu.beams import DeviceBeams, past_shape
from moeinf.models.gpu.block_sparse import DeviceBlockSparse
from moeinf.models.gpu.compressed import DeviceCompressedCore
from moeinf.models.gpu.group_sparse import DeviceGroupSparse
from moeinf.models.gpu.heads import DeviceHeadsCore
from moeinf.models.gpu.indexed import DeviceIndexedCore
from moeinf.models.gpu.latent import DeviceLatentCore
from moeinf.models.gpu.pooled import DevicePooledCore
from moeinf.models.gpu.rotary import DevicePositions, DeviceRotary
from moeinf.models.gpu.staging import Staging
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.array_math import function_of
from moeinf.models.layers.attention_config import (
    MLP_NAMES,
    AttentionConfig,
    AttentionSite,
    BlockIndex,
    CompressedHeads,
    GroupIndex,
    Heads,
    IndexHeads,
    LatentHeads,
    NormConfig,
)
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import PoolsOf
from moeinf.models.layers.recurrent.channel_delta import ChannelDeltaRule
from moeinf.models.layers.recurrent.delta_config import DeltaConfig
from moeinf.models.layers.recurrent.delta_net import DeltaNet
from moeinf.models.layers.recurrent.mamba2 import Mamba2, Scan
from moeinf.models.layers.recurrent.mamba_config import MambaConfig
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.soft_tokens import any_within
from moeinf.models.layers.weights import Embedding
from moeinf.types import Activation, DType, Float32Array

_TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class DeviceLayers:
    """moeinf.models.layers.protocol.Layers over the kernels of a device. Embeddings are looked up in host memory."""

    def __init__(self, weights: DeviceWeights, dtype: DType, context: int, program: DecodeProgram | None) -> None:
        """dtype: of keys and values; context: tokens of a sequence at most; program: None where no step is recorded."""
        self.weights = weights
        self.staging = Staging(weights.device)
        self._dtype, self._context, self._program = _TORCH_DTYPES[dtype], context, program
        self._input: Tensor | None = None
        self._spare: Tensor | None = None

    def begin_pass(self, num_tokens: int) -> None:
        pass  # kernels and cuBLAS go by the rows of each call

    def embedding(self, name: str) -> Callable[[Sequence[int]], Tensor]:
        rows = self.lookup(name)
        return lambda ids: self.upload(rows(ids))

    def lookup(self, name: str) -> Embedding:
        return self.weights.rows(name)

    def upload(self, rows: Float32Array) -> Tensor:
        return self.staging.upload(rows)

    def rotary(self, rope: Rope | None, context_length: int) -> DeviceRotary:
        factors = None if rope is None or rope.learned is None else self.weights.vector(rope.learned)
        return DeviceRotary(self.weights.device.kind, rope, min(context_length, self._context), factors)

    def angles(self, cos: Float32Array, sin: Float32Array) -> DevicePositions:
        position = torch.zeros(1, dtype=torch.int32, device=self.weights.device.kind)
        return DevicePositions(self.weights.math.of_host(cos), self.weights.math.of_host(sin), position, 0)

    def attention(self, config: AttentionConfig, site: AttentionSite) -> DeviceAttention:
        assert config.sight.sees != "all", "towers run on the CPU"
        return DeviceAttention(self.weights, self._dtype, config, site)

    def latent_core(self, keys_values: str, heads: LatentHeads, layer: int) -> DeviceLatentCore:
        return DeviceLatentCore(*self._latent(keys_values, heads), self._dtype, heads, layer)

    def indexed_core(
        self,
        keys_values: str,
        heads: LatentHeads,
        index: IndexHeads,
        layer: int,
        *,
        keeps_keys: bool,
        pooled: Callable[[Tensor], Tensor] | None = None,
    ) -> DeviceIndexedCore:
        latent = (*self._latent(keys_values, heads), self._dtype, heads, layer)
        if pooled is not None:
            return DevicePooledCore(*latent, index=index, pooled=pooled)
        return DeviceIndexedCore(*latent, index=index, keeps_keys=keeps_keys)

    def _latent(self, keys_values: str, heads: LatentHeads) -> tuple[DeviceWeights, Tensor]:
        matrix = self.weights.matrix(keys_values)
        assert matrix.format in _TORCH_DTYPES, "the plan leaves out of `matrices` what is multiplied by head"
        by_head = matrix.data.view(_TORCH_DTYPES[matrix.format]).view(heads.num_heads, -1, matrix.cols)
        return self.weights, by_head

    def compressed_core(
        self, heads: CompressedHeads, sinks: Tensor, pools: PoolsOf[Tensor] | None, layer: int, number: int
    ) -> DeviceCompressedCore:
        return DeviceCompressedCore(heads, sinks, pools, layer, number)

    def heads_core(self, config: AttentionConfig, layer: int, profiles: str | None = None) -> DeviceHeadsCore:
        return DeviceHeadsCore(self.weights, self._dtype, config, layer, profiles)

    def beams(self, heads: Heads, capacity: int, num_beams: int, bias: Tensor | None) -> DeviceBeams:
        shape, kind = past_shape(heads, capacity, num_beams), self.weights.device.kind
        if num_beams > 1 and (self._spare is None or self._spare.shape != shape):
            self._spare = torch.zeros(shape, device=kind)
        past = torch.zeros(shape, device=kind)
        return DeviceBeams(self.weights.ops.vectors, heads, past, self._spare, bias)

    def delta_net(self, config: DeltaConfig, site: AttentionSite) -> DeltaNet[Tensor]:
        return DeltaNet(self.weights, config, site)

    def mamba2(self, config: MambaConfig, site: AttentionSite) -> Mamba2[Tensor]:
        return Mamba2(self.weights, config, site)

    def scan(self) -> Scan[Tensor]:
        return Scan(self.weights.math)

    def channel_delta(self) -> ChannelDeltaRule[Tensor]:
        return ChannelDeltaRule(self.weights.math)

    def block_sparse(self, config: AttentionConfig, site: AttentionSite, index: BlockIndex) -> DeviceBlockSparse:
        return DeviceBlockSparse(self.weights, self._dtype, config, site, index)

    def group_sparse(self, config: AttentionConfig, site: AttentionSite, index: GroupIndex) -> DeviceGroupSparse:
        return DeviceGroupSparse(self.weights, self._dtype, config, site, index)

    def softmax_router(self, gate: str, norm: NormConfig | None, top_k: int, *, normalise: bool) -> DeviceSoftmaxRouter:
        return DeviceSoftmaxRouter(self.weights, gate, norm, top_k, normalise=normalise)

    def gated_mlp(
        self, prefix: str, norm: NormConfig, names: tuple[str, str, str] = MLP_NAMES, activation: Activation = "silu"
    ) -> DeviceGatedMLP:
        return DeviceGatedMLP(self.weights, prefix, norm, names, activation)

    def head(
        self, matrix: str, norm: NormConfig | None, scale: float = 1.0, bias: str | None = None
    ) -> Callable[[Tensor], Tensor]:
        last_norm, product = self.weights.norm(norm), self.weights.linear(matrix, bias)
        return lambda x: product(last_norm(x)) * scale if scale != 1.0 else product(last_norm(x))

    def carried(self, x: Tensor) -> Tensor:
        self.weights.device.make_current()
        return x.to(self.weights.device.kind, non_blocking=True)  # torch orders the streams of both devices

    def run_or_replay(
        self,
        compute: Callable[[Tensor, Sequence[Span[DevicePositions]]], Tensor],
        x: Tensor,
        spans: Sequence[Span[DevicePositions]],
    ) -> Float32Array:
        """Waits for the device; a decode step, of one token of each beam, becomes a captured program.

        But one of a picture's tokens, to which layers may add what another token's do not.
        """
        cache = spans[0].cache
        few = len(x) <= min(cache.beams, MAX_ROWS) and not any_within(cache.pictures, cache.length, len(x))
        if self._program is None or not few or len(spans) > 1:
            return self.staging.to_host(compute(x, spans))
        if self._input is None or self._input.shape != x.shape:
            self._input = torch.empty_like(x)
        given, owner = self._input.copy_(x), (cache, len(x), cache.positions)
        return self.staging.to_host(self._program.run(lambda: compute(given, spans), owner, lambda: cache.advance(1)))


class DeviceGatedMLP:
    """See Layers.gated_mlp."""

    def __init__(
        self, weights: DeviceWeights, prefix: str, norm: NormConfig, names: tuple[str, str, str], activation: Activation
    ) -> None:
        self._weights, self._norm = weights, weights.norm(norm)
        self._activated = function_of(weights.math, activation)
        self._gate, self._up, self._down = (weights.matrix(f"{prefix}{n}.weight") for n in names)

    def add_to(self, x: Tensor) -> None:
        weights = self._weights
        hidden = self._norm(x)
        gated = self._activated(weights.product(hidden, self._gate)) * weights.product(hidden, self._up)
        weights.ops.matrices.linear(gated, self._down, x, add=True)


class DeviceSoftmaxRouter:
    """See Layers.softmax_router; ids are int32."""

    def __init__(
        self, weights: DeviceWeights, gate: str, norm: NormConfig | None, top_k: int, *, normalise: bool
    ) -> None:
        self._weights, self._top_k, self._normalise = weights, top_k, normalise
        self._gate, self._norm = weights.matrix(gate), weights.norm(norm)

    def __call__(self, x: Tensor) -> tuple[Tensor, DeviceRouting]:
        weights = self._weights
        hidden = self._norm(x)
        logits = weights.product(hidden.contiguous(), self._gate)
        ids = torch.empty((len(x), self._top_k), dtype=torch.int32, device=x.device)
        shares = torch.empty((len(x), self._top_k), dtype=torch.float32, device=x.device)
        weights.ops.vectors.softmax_topk(logits, self._top_k, self._normalise, ids, shares)
        return hidden, DeviceRouting(ids, shares)
