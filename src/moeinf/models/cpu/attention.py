"""Attention with grouped keys and values on the CPU, in one native call."""

from __future__ import annotations

import numpy as np

from moeinf import _native
from moeinf.models.cpu.weights import NativeWeights
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite
from moeinf.models.layers.kv_cache import Cache
from moeinf.types import DTYPE_BYTES, ByteArray, DType, Float32Array

Angles = tuple[Float32Array, Float32Array]  # cos and sin [tokens, rotary_dim / 2]


class KVState:
    """Keys and values of one layer on the CPU: the bytes of [kv_heads, capacity, head_dim] in `format`.

    Pages are touched, and so counted as resident, only as tokens arrive.
    """

    rewinds = True

    def __init__(self, num_kv_heads: int, head_dim: int, capacity: int, dtype: DType) -> None:
        size = num_kv_heads * capacity * head_dim * DTYPE_BYTES[dtype]
        self.keys: ByteArray = np.empty(size, np.uint8)
        self.values: ByteArray = np.empty(size, np.uint8)
        self.format = dtype

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read


class NativeAttention:
    """See Layers.attention. Keys and values are kept in the cache's format."""

    def __init__(self, weights: NativeWeights, dtype: DType, config: AttentionConfig, site: AttentionSite) -> None:
        assert config.norm != "layer" or config.qk_norm == "none", "no family has layer norms of heads"
        self._layer, self._config, self._dtype = site.layer, config, dtype
        prefix = site.prefix
        matrices = [weights.linear(f"{prefix}{n}_proj.weight").native for n in "qkvo"]
        normed, biased = config.qk_norm != "none", ("qkv" if config.bias else "") + ("o" if config.output_bias else "")
        vectors = [weights.norm_vectors(f"{prefix}{n}_norm.weight", config.norm)[0] if normed else None for n in "qk"]
        vectors += [weights.vector(f"{prefix}{n}_proj.bias") if n in biased else None for n in "qkvo"]
        weight, norm_bias = weights.norm_vectors(site.norm, config.norm)
        rope = config.rope
        self._native = _native.AttentionLayer(
            weights.kernels,
            matrices,
            weight,
            vectors,
            config.head_dim,
            config.norm_eps,
            config.qk_norm,
            config.clip_qkv or 0.0,
            config.window or 0,
            rotary_dim=0 if rope is None else rope.rotary_dim,
            interleaved=rope is not None and rope.interleaved,
            scale=config.scale,
            residual=site.residual,
            gated=config.gate,
            norm_bias=norm_bias,
            sinks=weights.vector(f"{prefix}sinks") if config.sinks else None,
        )

    def new_state(self, capacity: int) -> KVState:
        return KVState(self._config.num_kv_heads, self._config.head_dim, capacity, self._dtype)

    def add_to(self, x: Float32Array, cache: Cache, places: Angles) -> None:
        cos, sin = places
        state: KVState = cache.states[self._layer]
        self._native.run(x, state.keys, state.values, state.format, cache.capacity, cache.length, cos, sin)
