"""Layers on the CPU: numpy arrays in, the native kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from moeinf import _native
from moeinf.models.cpu.delta import NativeDeltaNet
from moeinf.models.cpu.latent import NativeLatentCore
from moeinf.models.layers.array_math import NumpyMath
from moeinf.models.layers.beams import HostBeams
from moeinf.models.layers.delta_net import DeltaConfig
from moeinf.models.layers.kv_cache import Cache, KVState
from moeinf.models.layers.protocol import AttentionConfig, NormKind
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.weights import Embedding, StoredTensor, vector
from moeinf.types import DType, Float32Array, IntArray, Routing

Angles = tuple[Float32Array, Float32Array]  # cos and sin [tokens, rotary_dim / 2]


class NativeLayers:
    """moeinf.models.layers.protocol.Layers over the native kernels, which multiply by a matrix as it is stored."""

    def __init__(self, kernels: _native.Kernels, tensors: Mapping[str, StoredTensor], dtype: DType) -> None:
        self.kernels = kernels
        self.dtype: DType = dtype
        self.math = NumpyMath()
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def begin_pass(self, num_tokens: int) -> None:
        self.kernels.begin_pass(num_tokens)

    def vector(self, name: str) -> Float32Array:
        """A norm or a bias, in float32."""
        return vector(self._tensors[name])

    def linear(self, name: str, bias: str | None = None) -> Linear:
        return Linear(self.kernels, self._tensors[name], None if bias is None else self.vector(bias))

    def norm(self, name: str, eps: float, kind: NormKind = "rms") -> Callable[[Float32Array], Float32Array]:
        return Norm(self.kernels, *self.norm_vectors(name, kind), eps)

    def norm_vectors(self, name: str, kind: NormKind) -> tuple[Float32Array, Float32Array | None]:
        """What multiplies, and of a layer norm what is added."""
        weight = self.vector(name)
        if kind == "layer":
            return weight, self.vector(name.removesuffix("weight") + "bias")
        return (weight + 1 if kind == "rms+1" else weight), None

    def routing(self, ids: IntArray, weights: Float32Array) -> Routing:
        return Routing(ids, np.ascontiguousarray(weights, np.float32))

    def embedding(self, name: str) -> Embedding:
        return Embedding(self._tensors[name])

    def rotary(self, rope: Rope | None, context_length: int) -> Callable[[int, int, int], Angles]:
        if rope is None:
            return lambda start, num_tokens, room: (_NOTHING, _NOTHING)
        return lambda start, num_tokens, room: rope.within(room).tables(start, num_tokens)

    def attention(
        self, config: AttentionConfig, prefix: str, norm: str, layer: int, residual: float = 1.0
    ) -> Attention:
        return Attention(self, config, prefix, norm, layer, residual)

    def latent_core(
        self, keys_values: str, num_heads: int, plain_dim: int, rope: Rope, scale: float, layer: int
    ) -> NativeLatentCore:
        return NativeLatentCore(
            self.kernels, self._tensors[keys_values], self.dtype, num_heads, plain_dim, rope, scale, layer
        )

    def beams(
        self, num_heads: int, head_dim: int, scale: float, capacity: int, num_beams: int, bias: Float32Array | None
    ) -> HostBeams:
        return HostBeams(num_heads, head_dim, scale, capacity, num_beams, bias)

    def delta_net(self, config: DeltaConfig, prefix: str, norm: str, layer: int) -> NativeDeltaNet:
        return NativeDeltaNet(self, config, prefix, norm, layer)

    def softmax_router(
        self, gate: str, norm: str, eps: float, top_k: int, normalise: bool, kind: NormKind = "rms"
    ) -> SoftmaxRouter:
        return SoftmaxRouter(self, gate, norm, eps, top_k, normalise, kind)

    def gated_mlp(self, prefix: str, norm: str, eps: float, residual: float = 1.0, kind: NormKind = "rms") -> GatedMLP:
        return GatedMLP(self, prefix, norm, eps, residual, kind)

    def head(
        self, matrix: str, norm: str, eps: float, kind: NormKind = "rms", scale: float = 1.0, bias: str | None = None
    ) -> Callable[[Float32Array], Float32Array]:
        last_norm, product, factor = self.norm(norm, eps, kind), self.linear(matrix, bias), np.float32(scale)
        return lambda x: product(last_norm(x)) * factor if scale != 1.0 else product(last_norm(x))

    def carry_out(
        self, compute: Callable[[Float32Array, Angles], Float32Array], x: Float32Array, places: Angles, cache: object
    ) -> Float32Array:
        return compute(x, places)


_NOTHING: Float32Array = np.empty((0, 0), np.float32)


class Linear:
    """A weight matrix [rows, cols], multiplied by the native kernels in the format in which it is stored."""

    def __init__(self, kernels: _native.Kernels, tensor: StoredTensor, bias: Float32Array | None = None) -> None:
        rows, cols = tensor.shape
        self._bias = bias
        self.native = _native.Matrix(tensor.data, tensor.format, rows, cols)
        self._kernels = kernels
        self._rows = rows

    def __call__(self, x: Float32Array) -> Float32Array:
        """x [tokens, cols] -> [tokens, rows]."""
        y = np.empty((len(x), self._rows), np.float32)
        self._kernels.linear(x, self.native, y)
        if self._bias is not None:
            y += self._bias
        return y


class Norm:
    """x / rms(x) * weight over the last dimension; with a bias (x - mean) / std * weight + bias."""

    def __init__(self, kernels: _native.Kernels, weight: Float32Array, bias: Float32Array | None, eps: float) -> None:
        self._kernels, self._weight, self._bias, self._eps = kernels, weight, bias, eps

    def __call__(self, x: Float32Array) -> Float32Array:
        rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        out = np.empty_like(rows)
        if self._bias is None:
            _native.rms_norm(self._kernels, rows, self._weight, self._eps, out)
        else:
            _native.layer_norm(self._kernels, rows, self._weight, self._bias, self._eps, out)
        return out.reshape(x.shape)


class Attention:
    """See Layers.attention. Keys and values are kept in the cache's format."""

    def __init__(
        self, layers: NativeLayers, config: AttentionConfig, prefix: str, norm: str, layer: int, residual: float
    ) -> None:
        assert config.norm != "layer" or config.qk_norm == "none", "no family has layer norms of heads"
        self._layer, self._config, self._dtype = layer, config, layers.dtype
        matrices = [layers.linear(f"{prefix}{n}_proj.weight").native for n in "qkvo"]
        normed, biased = config.qk_norm != "none", ("qkv" if config.bias else "") + ("o" if config.output_bias else "")
        vectors = [layers.norm_vectors(f"{prefix}{n}_norm.weight", config.norm)[0] if normed else None for n in "qk"]
        vectors += [layers.vector(f"{prefix}{n}_proj.bias") if n in biased else None for n in "qkvo"]
        weight, norm_bias = layers.norm_vectors(norm, config.norm)
        rope = config.rope
        self._native = _native.AttentionLayer(
            layers.kernels,
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
            residual=residual,
            gated=config.gate,
            norm_bias=norm_bias,
            sinks=layers.vector(f"{prefix}sinks") if config.sinks else None,
        )

    def new_state(self, capacity: int) -> KVState:
        return KVState(self._config.num_kv_heads, self._config.head_dim, capacity, self._dtype)

    def add_to(self, x: Float32Array, cache: Cache, places: Angles) -> None:
        cos, sin = places
        state: KVState = cache.states[self._layer]
        self._native.run(x, state.keys, state.values, state.format, cache.capacity, cache.length, cos, sin)


class GatedMLP:
    """See Layers.gated_mlp."""

    def __init__(
        self, layers: NativeLayers, prefix: str, norm: str, eps: float, residual: float, kind: NormKind
    ) -> None:
        self._residual = np.float32(residual)
        self._gate, self._up, self._down = (layers.linear(f"{prefix}{n}_proj.weight") for n in ("gate", "up", "down"))
        self._norm, self._math = layers.norm(norm, eps, kind), layers.math

    def add_to(self, x: Float32Array) -> None:
        hidden = self._norm(x)
        x += self._down(self._math.silu(self._gate(hidden)) * self._up(hidden)) * self._residual


class SoftmaxRouter:
    """See Layers.softmax_router."""

    def __init__(
        self, layers: NativeLayers, gate: str, norm: str, eps: float, top_k: int, normalise: bool, kind: NormKind
    ) -> None:
        weight = layers.vector(norm) + np.float32(kind == "rms+1")
        self._native = _native.RouterLayer(layers.kernels, layers.linear(gate).native, weight, eps, top_k, normalise)
        self._top_k = top_k

    def __call__(self, x: Float32Array) -> tuple[Float32Array, Routing]:
        hidden = np.empty_like(x)
        routing = Routing(np.empty((len(x), self._top_k), np.int64), np.empty((len(x), self._top_k), np.float32))
        self._native.run(x, hidden, routing.ids, routing.weights)
        return hidden, routing
