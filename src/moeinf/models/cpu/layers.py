"""Layers on the CPU: numpy arrays in, the native kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles, NativeAttention
from moeinf.models.cpu.beams import HostBeams
from moeinf.models.cpu.block_sparse import NativeBlockSparse
from moeinf.models.cpu.compressed import NativeCompressedCore
from moeinf.models.cpu.delta import NativeChannelDelta, NativeDeltaNet
from moeinf.models.cpu.group_sparse import NativeGroupSparse
from moeinf.models.cpu.heads import NativeHeadsCore
from moeinf.models.cpu.indexed import NativeIndexedCore
from moeinf.models.cpu.latent import NativeLatentCore
from moeinf.models.cpu.mamba import NativeMamba2, NativeScan
from moeinf.models.cpu.pooled import NativePooledCore
from moeinf.models.cpu.weights import NativeWeights
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
from moeinf.models.layers.kv_cache import Cache, Span
from moeinf.models.layers.protocol import PoolsOf
from moeinf.models.layers.recurrent.delta_config import DeltaConfig
from moeinf.models.layers.recurrent.mamba_config import MambaConfig
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.weights import Embedding, StoredTensor
from moeinf.types import Activation, Float32Array, KVFormat, Routing


class NativeLayers:
    """moeinf.models.layers.protocol.Layers over the native kernels, which multiply by a matrix as it is stored."""

    def __init__(self, kernels: _native.Kernels, tensors: Mapping[str, StoredTensor], kept: KVFormat) -> None:
        """kept: the format of keys and values."""
        self.weights = NativeWeights(kernels, tensors)
        self._kept: KVFormat = kept

    def begin_pass(self, num_tokens: int) -> None:
        self.weights.kernels.begin_pass(num_tokens)

    def carried(self, x: Float32Array) -> Float32Array:
        return x

    def embedding(self, name: str) -> Embedding:
        return Embedding(self.weights.tensors[name])

    def lookup(self, name: str) -> Embedding:
        return Embedding(self.weights.tensors[name])

    def upload(self, rows: Float32Array) -> Float32Array:
        return rows

    def rotary(self, rope: Rope | None, context_length: int) -> Callable[[int, int, Cache], Angles]:
        if rope is None:
            return lambda start, num_tokens, cache: (_NOTHING, _NOTHING)
        if rope.learned is not None:
            rope = replace(rope, frequencies=rope.frequencies * np.exp(self.weights.vector(rope.learned)))
        return lambda start, num_tokens, cache: rope.within(cache.capacity, cache.reach).tables(
            start, num_tokens, cache.pictures
        )

    def angles(self, cos: Float32Array, sin: Float32Array) -> Angles:
        return cos, sin

    def attention(self, config: AttentionConfig, site: AttentionSite) -> NativeAttention:
        return NativeAttention(self.weights, self._kept, config, site)

    def latent_core(self, keys_values: str, heads: LatentHeads, layer: int) -> NativeLatentCore:
        return NativeLatentCore(self.weights, keys_values, self._kept, heads, layer)

    def indexed_core(
        self,
        keys_values: str,
        heads: LatentHeads,
        index: IndexHeads,
        layer: int,
        *,
        keeps_keys: bool,
        pooled: Callable[[Float32Array], Float32Array] | None = None,
    ) -> NativeIndexedCore:
        latent = (self.weights, keys_values, self._kept, heads, layer)
        if pooled is not None:
            return NativePooledCore(*latent, index=index, pooled=pooled)
        return NativeIndexedCore(*latent, index=index, keeps_keys=keeps_keys)

    def compressed_core(
        self, heads: CompressedHeads, sinks: Float32Array, pools: PoolsOf[Float32Array] | None, layer: int, number: int
    ) -> NativeCompressedCore:
        return NativeCompressedCore(heads, sinks, pools, layer, number)

    def heads_core(self, config: AttentionConfig, layer: int, profiles: str | None = None) -> NativeHeadsCore:
        return NativeHeadsCore(self.weights, self._kept, config, layer, profiles)

    def beams(self, heads: Heads, capacity: int, num_beams: int, bias: Float32Array | None) -> HostBeams:
        return HostBeams(heads, capacity, num_beams, bias)

    def delta_net(self, config: DeltaConfig, site: AttentionSite) -> NativeDeltaNet:
        return NativeDeltaNet(self.weights, config, site)

    def mamba2(self, config: MambaConfig, site: AttentionSite) -> NativeMamba2:
        return NativeMamba2(self.weights, config, site)

    def scan(self) -> NativeScan:
        return NativeScan(self.weights.kernels)

    def channel_delta(self) -> NativeChannelDelta:
        return NativeChannelDelta(self.weights.kernels)

    def block_sparse(self, config: AttentionConfig, site: AttentionSite, index: BlockIndex) -> NativeBlockSparse:
        return NativeBlockSparse(self.weights, self._kept, config, site, index)

    def group_sparse(self, config: AttentionConfig, site: AttentionSite, index: GroupIndex) -> NativeGroupSparse:
        return NativeGroupSparse(self.weights, self._kept, config, site, index)

    def softmax_router(self, gate: str, norm: NormConfig | None, top_k: int, *, normalise: bool) -> SoftmaxRouter:
        return SoftmaxRouter(self.weights, gate, norm, top_k, normalise=normalise)

    def gated_mlp(
        self, prefix: str, norm: NormConfig, names: tuple[str, str, str] = MLP_NAMES, activation: Activation = "silu"
    ) -> GatedMLP:
        return GatedMLP(self.weights, prefix, norm, names, activation)

    def head(
        self, matrix: str, norm: NormConfig | None, scale: float = 1.0, bias: str | None = None
    ) -> Callable[[Float32Array], Float32Array]:
        last_norm, product = self.weights.norm(norm), self.weights.linear(matrix, bias)
        factor = np.float32(scale)
        return lambda x: product(last_norm(x)) * factor if scale != 1.0 else product(last_norm(x))

    def run_or_replay(
        self,
        compute: Callable[[Float32Array, Sequence[Span[Angles]]], Float32Array],
        x: Float32Array,
        spans: Sequence[Span[Angles]],
    ) -> Float32Array:
        return compute(x, spans)


_NOTHING: Float32Array = np.empty((0, 0), np.float32)


class GatedMLP:
    """See Layers.gated_mlp."""

    def __init__(
        self, weights: NativeWeights, prefix: str, norm: NormConfig, names: tuple[str, str, str], activation: Activation
    ) -> None:
        self._gate, self._up, self._down = (weights.linear(f"{prefix}{n}.weight") for n in names)
        self._norm, self._activated = weights.norm(norm), function_of(weights.math, activation)

    def add_to(self, x: Float32Array) -> None:
        hidden = self._norm(x)
        x += self._down(self._activated(self._gate(hidden)) * self._up(hidden))


class SoftmaxRouter:
    """See Layers.softmax_router. What it returns of a single token holds until it is called again."""

    def __init__(
        self, weights: NativeWeights, gate: str, norm: NormConfig | None, top_k: int, *, normalise: bool
    ) -> None:
        assert norm is None or norm.kind not in ("layer", "centred"), (
            "no family has a layer norm in front of this router"
        )
        norm_weight = None if norm is None else weights.norm_vectors(norm.name, norm.kind)[0]
        matrix, eps = weights.linear(gate).native, 0.0 if norm is None else norm.eps
        self._native = _native.RouterLayer(weights.kernels, matrix, norm_weight, eps, top_k, normalise)
        self._cols, self._top_k = weights.tensors[gate].shape[1], top_k
        self._of_token = self._room(1)  # new arrays take as long as the norm and the choice together

    def __call__(self, x: Float32Array) -> tuple[Float32Array, Routing]:
        hidden, routing = self._of_token if len(x) == 1 else self._room(len(x))
        self._native.run(x, hidden, routing.ids, routing.weights)
        return hidden, routing

    def _room(self, tokens: int) -> tuple[Float32Array, Routing]:
        ids, weights = np.empty((tokens, self._top_k), np.int64), np.empty((tokens, self._top_k), np.float32)
        return np.empty((tokens, self._cols), np.float32), Routing(ids, weights)
