"""Layers on the CPU: numpy arrays in, the native kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from moeinf import _native
from moeinf.models.kv_cache import KVCache
from moeinf.models.layers import AttentionConfig
from moeinf.models.weights import Embedding, StoredTensor, vector
from moeinf.types import DType, Float32Array, Routing

Angles = tuple[Float32Array, Float32Array]  # cos and sin [tokens, head_dim / 2]


class NativeLayers:
    """moeinf.models.layers.Layers over the native kernels, which multiply by a matrix as it is stored."""

    def __init__(self, kernels: _native.Kernels, tensors: Mapping[str, StoredTensor], dtype: DType) -> None:
        self.kernels = kernels
        self.dtype: DType = dtype
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def vector(self, name: str) -> Float32Array:
        """A norm or a bias, in float32."""
        return vector(self._tensors[name])

    def optional_vector(self, name: str) -> Float32Array | None:
        return self.vector(name) if name in self else None

    def linear(self, name: str) -> Linear:
        return Linear(self.kernels, self._tensors[name])

    def norm(self, name: str, eps: float) -> Norm:
        return Norm(self.kernels, self.vector(name), eps)

    def embedding(self, name: str) -> Embedding:
        return Embedding(self._tensors[name])

    def rotary(self, head_dim: int, theta: float, context_length: int) -> Rotary:
        return Rotary(head_dim, theta)

    def attention(self, config: AttentionConfig, prefix: str, norm: str, layer: int) -> Attention:
        return Attention(self, config, prefix, norm, layer)

    def softmax_router(self, gate: str, norm: str, eps: float, top_k: int, normalise: bool) -> SoftmaxRouter:
        return SoftmaxRouter(self, gate, norm, eps, top_k, normalise)

    def gated_mlp(self, prefix: str, norm: str, eps: float) -> GatedMLP:
        return GatedMLP(self, prefix, norm, eps)

    def head(self, matrix: str, norm: str, eps: float) -> Callable[[Float32Array], Float32Array]:
        last_norm, product = self.norm(norm, eps), self.linear(matrix)
        return lambda x: product(last_norm(x))

    def new_cache(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> KVCache:
        return KVCache(num_layers, num_kv_heads, head_dim, capacity, self.dtype)

    def carry_out(self, compute: Callable[[Float32Array, Angles], Float32Array], x: Float32Array, places: Angles,
                  cache: object) -> Float32Array:
        return compute(x, places)


class Linear:
    """A weight matrix [rows, cols], multiplied by the native kernels in the format in which it is stored."""

    def __init__(self, kernels: _native.Kernels, tensor: StoredTensor) -> None:
        rows, cols = tensor.shape
        self.native = _native.Matrix(tensor.data, tensor.format, rows, cols)
        self._kernels = kernels
        self._rows = rows

    def __call__(self, x: Float32Array) -> Float32Array:
        """x [tokens, cols] -> [tokens, rows]."""
        y = np.empty((len(x), self._rows), np.float32)
        self._kernels.linear(x, self.native, y)
        return y


class Rotary:
    """Rotary positions of plain rope: cos and sin [tokens, head_dim / 2]; pairs are (i, i + head_dim / 2)."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self._frequencies = (theta ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)

    def __call__(self, start: int, num_tokens: int) -> Angles:
        """Of the places start .. start + num_tokens."""
        angles = np.arange(start, start + num_tokens, dtype=np.float32)[:, None] * self._frequencies
        return np.cos(angles), np.sin(angles)


class Norm:
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, kernels: _native.Kernels, weight: Float32Array, eps: float) -> None:
        self._kernels = kernels
        self._weight = weight
        self._eps = eps

    def __call__(self, x: Float32Array) -> Float32Array:
        out = np.empty_like(x)
        _native.rms_norm(self._kernels, x, self._weight, self._eps, out)
        return out


class Attention:
    """See Layers.attention. Keys and values are kept in the cache's format."""

    def __init__(self, layers: NativeLayers, config: AttentionConfig, prefix: str, norm: str, layer: int) -> None:
        self._layer = layer
        matrices = [layers.linear(f"{prefix}{n}_proj.weight").native for n in "qkvo"]
        vectors = [layers.optional_vector(f"{prefix}{n}_norm.weight") for n in "qk"]
        vectors += [layers.optional_vector(f"{prefix}{n}_proj.bias") for n in "qkvo"]
        self._native = _native.AttentionLayer(
            layers.kernels, matrices, layers.vector(norm), vectors, config.head_dim, config.norm_eps, config.qk_norm,
            config.clip_qkv or 0.0, config.window or 0,
        )

    def add_to(self, x: Float32Array, cache: KVCache, places: Angles) -> None:
        cos, sin = places
        keys, values = cache.keys[self._layer], cache.values[self._layer]
        self._native.run(x, keys, values, cache.format, cache.capacity, cache.length, cos, sin)


class GatedMLP:
    """See Layers.gated_mlp."""

    def __init__(self, layers: NativeLayers, prefix: str, norm: str, eps: float) -> None:
        self._gate, self._up, self._down = (layers.linear(f"{prefix}{n}_proj.weight") for n in ("gate", "up", "down"))
        self._norm = layers.norm(norm, eps)

    def add_to(self, x: Float32Array) -> None:
        hidden = self._norm(x)
        gate = self._gate(hidden)
        with np.errstate(over="ignore"):  # exp(-gate) of a very negative gate is infinite, and silu then 0
            x += self._down(gate / (1 + np.exp(-gate)) * self._up(hidden))


class SoftmaxRouter:
    """See Layers.softmax_router."""

    def __init__(self, layers: NativeLayers, gate: str, norm: str, eps: float, top_k: int, normalise: bool) -> None:
        self._native = _native.RouterLayer(layers.kernels, layers.linear(gate).native, layers.vector(norm), eps, top_k,
                                           normalise)
        self._top_k = top_k

    def __call__(self, x: Float32Array) -> tuple[Float32Array, Routing]:
        hidden = np.empty_like(x)
        routing = Routing(np.empty((len(x), self._top_k), np.int64), np.empty((len(x), self._top_k), np.float32))
        self._native.run(x, hidden, routing.ids, routing.weights)
        return hidden, routing
