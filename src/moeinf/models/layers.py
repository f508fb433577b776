"""The dense pieces that decoder families share: rotary positions, attention, gated MLP, softmax router.

Hidden states are float32 arrays [tokens, hidden]; a layer adds its output to the one it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from moeinf import _native
from moeinf.errors import CheckpointError
from moeinf.models.kv_cache import KVCache
from moeinf.models.weights import Weights
from moeinf.types import Float32Array, Routing

MAX_HEAD_DIM = 576  # what the native attention has room for

Shapes = dict[str, tuple[int, ...]]


class Rotary:
    """Rotary positions of plain rope: cos and sin [tokens, head_dim / 2]; pairs are (i, i + head_dim / 2)."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self._frequencies = (theta ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)

    def tables(self, start: int, num_tokens: int) -> tuple[Float32Array, Float32Array]:
        """Of the positions start .. start + num_tokens."""
        angles = np.arange(start, start + num_tokens, dtype=np.float32)[:, None] * self._frequencies
        return np.cos(angles), np.sin(angles)


class Norm:
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, weights: Weights, name: str, eps: float) -> None:
        self._kernels = weights.kernels
        self._weight = weights.vector(name)
        self._eps = eps

    def __call__(self, x: Float32Array) -> Float32Array:
        out = np.empty_like(x)
        _native.rms_norm(self._kernels, x, self._weight, self._eps, out)
        return out


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"  # over each head, or over all heads together
    clip_qkv: float | None = None
    window: int | None = None  # a token sees itself and the window-1 tokens before it

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise CheckpointError(
                f"config.json: {self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads "
                f"of an even size (head_dim {self.head_dim})"
            )
        if self.head_dim > MAX_HEAD_DIM:
            raise CheckpointError(f"config.json: heads of {self.head_dim} are beyond the {MAX_HEAD_DIM} that "
                                  "moeinf computes")


class Attention:
    """Causal multi-head attention with grouped keys and values, and the norm in front of it.

    Weights under `prefix`, in Hugging Face names. Keys and values are kept in the cache's format.
    """

    def __init__(self, config: AttentionConfig, weights: Weights, prefix: str, norm: str, layer: int) -> None:
        self._layer = layer
        matrices = [weights.linear(f"{prefix}{n}_proj.weight").native for n in "qkvo"]
        vectors = [weights.optional_vector(f"{prefix}{n}_norm.weight") for n in "qk"]
        vectors += [weights.optional_vector(f"{prefix}{n}_proj.bias") for n in "qkvo"]
        self._native = _native.AttentionLayer(
            weights.kernels, matrices, weights.vector(norm), vectors, config.head_dim, config.norm_eps, config.qk_norm,
            config.clip_qkv or 0.0, config.window or 0,
        )

    def add_to(self, x: Float32Array, cache: KVCache, cos: Float32Array, sin: Float32Array) -> None:
        """x [tokens, hidden] += attention(norm(x)); stores the tokens' keys and values behind those seen."""
        keys, values = cache.keys[self._layer], cache.values[self._layer]
        self._native.run(x, keys, values, cache.format, cache.capacity, cache.length, cos, sin)


def attention_shapes(config: AttentionConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Attention takes."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {
        f"{prefix}q_proj.weight": (queries, config.hidden_size),
        f"{prefix}k_proj.weight": (keys, config.hidden_size),
        f"{prefix}v_proj.weight": (keys, config.hidden_size),
        f"{prefix}o_proj.weight": (config.hidden_size, queries),
    }
    if config.bias:
        shapes |= {f"{prefix}{n}_proj.bias": (shapes[f"{prefix}{n}_proj.weight"][0],) for n in "qkvo"}
    if config.qk_norm != "none":
        whole = config.qk_norm == "full"
        shapes[f"{prefix}q_norm.weight"] = (queries if whole else config.head_dim,)
        shapes[f"{prefix}k_norm.weight"] = (keys if whole else config.head_dim,)
    return shapes


class GatedMLP:
    """down(silu(gate(x)) * up(x)), and the norm in front of it."""

    def __init__(self, weights: Weights, prefix: str, norm: Norm) -> None:
        self._gate, self._up, self._down = (weights.linear(f"{prefix}{n}_proj.weight") for n in ("gate", "up", "down"))
        self._norm = norm

    def add_to(self, x: Float32Array) -> None:
        """x [tokens, hidden] += mlp(norm(x))."""
        hidden = self._norm(x)
        gate = self._gate(hidden)
        with np.errstate(over="ignore"):  # exp(-gate) of a very negative gate is infinite, and silu then 0
            x += self._down(gate / (1 + np.exp(-gate)) * self._up(hidden))


def mlp_shapes(hidden: int, intermediate: int, prefix: str) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (intermediate, hidden),
        f"{prefix}up_proj.weight": (intermediate, hidden),
        f"{prefix}down_proj.weight": (hidden, intermediate),
    }


class SoftmaxRouter:
    """Norm, then softmax over all experts, and of these the best k; `normalise` makes their weights sum to 1."""

    def __init__(self, weights: Weights, gate: str, norm: str, eps: float, top_k: int, normalise: bool) -> None:
        self._native = _native.RouterLayer(weights.kernels, weights.linear(gate).native, weights.vector(norm), eps,
                                           top_k, normalise)
        self._top_k = top_k

    def __call__(self, x: Float32Array) -> tuple[Float32Array, Routing]:
        """x [tokens, hidden] -> norm(x), what the experts are given, and the routing, best expert first."""
        hidden = np.empty_like(x)
        routing = Routing(np.empty((len(x), self._top_k), np.int64), np.empty((len(x), self._top_k), np.float32))
        self._native.run(x, hidden, routing.ids, routing.weights)
        return hidden, routing
