"""Heads that a family makes itself, on the CPU: their attention in one native call, what convolutions mix, and values
that experts make."""

from __future__ import annotations

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention.routed_values import ValueExpertsPart
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.recurrent.compressed_heads import MixedHeadsPart
from moeinf.types import ByteArray, Float32Array, Routing


class NativeHeadsCore:
    """A HeadsPart. Keys and values are kept in the cache's format."""

    def __init__(self, memory: HostMemory, part: HeadsPart[Float32Array, Angles, Routing]) -> None:
        weights, config, profiles = memory.weights, part.config, part.profiles
        self._memory, self._kept = memory, memory.kept
        self._config, self._layer, rope = config, part.layer, config.rope
        self._native = _native.HeadsLayer(
            weights.kernels,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.window,
            rotary_dim=0 if rope is None else rope.rotary_dim,
            interleaved=rope is not None and rope.interleaved,
            scale=config.scale,
            profiles=None if profiles is None else _from_the_farthest(weights, profiles),
        )

    def new_state(self, capacity: int) -> KVState[ByteArray]:
        return KVState(self._memory, self._config.num_kv_heads, self._config.head_dim, capacity)

    def mixed(
        self,
        q: Float32Array,
        k: Float32Array,
        v: Float32Array,
        cache: Cache,
        positions: Angles,
        *,
        relative: Float32Array | None = None,
        sinks: Float32Array | None = None,
    ) -> Float32Array:
        state: KVState[ByteArray] = cache.states[self._layer]
        if self._config.scores.sharpening is not None:
            factors = self._config.scores.sharpening.factors(cache.length, len(q))
            q = q * factors
            relative = None if relative is None else relative * factors
        turned = positions if self._config.rope is not None else (np.empty((len(q), 0), np.float32),) * 2
        out = np.empty_like(q)
        self._native.run(
            q,
            k,
            v,
            state.keys,
            state.values,
            self._memory.kept,
            state.room,
            cache.length,
            *turned,
            out,
            relative,
            sinks,
        )
        return out


def _from_the_farthest(weights: NativeWeights, name: str) -> Float32Array:
    """Profiles [width, extent] of the distances extent - 1 down to 0, as positions lie."""
    return np.ascontiguousarray(weights.vector(name).reshape(weights.tensors[name].shape)[:, ::-1])


class ChosenValueExperts:
    """A ValueExpertsPart. An expert computes the rows that have chosen it, and only these."""

    def __init__(self, memory: HostMemory, part: ValueExpertsPart[Float32Array, Angles, Routing]) -> None:
        self._experts = [memory.weights.linear(name, activation="silu") for name in part.names]
        self._width = memory.weights.tensors[part.names[0]].shape[0]

    def sum_of(self, x: Float32Array, ids: Float32Array, weights: Float32Array) -> Float32Array:
        total = np.zeros((len(x), self._width), np.float32)
        for number in map(int, np.unique(ids)):
            rows, places = np.nonzero(ids == number)
            total[rows] += self._experts[number](x[rows]) * weights[rows, places, None]
        return total


class NativeMixedHeads:
    """A MixedHeadsPart."""

    def __init__(self, memory: HostMemory, part: MixedHeadsPart[Float32Array, Angles, Routing]) -> None:
        self._kernels, self._config = memory.weights.kernels, part.config
        self._taps, self._tap_bias, self._bias, self._lengths = part.tensors(memory.weights)

    def windows(self, seen: Float32Array) -> Float32Array:
        c, size = self._config, self._config.attention.head_dim
        out = np.empty(((len(seen) - c.before) * len(self._lengths), size * c.by_head), np.float32)
        _native.window_heads(self._kernels, seen, self._taps, self._tap_bias, size, c.by_head, out)
        return out

    def level(self, products: Float32Array, q: Float32Array, k: Float32Array) -> tuple[Float32Array, Float32Array]:
        out = np.empty_like(q), np.empty_like(k)
        _native.level_heads(self._kernels, products, self._bias, q, k, self._lengths, *out)
        return out
