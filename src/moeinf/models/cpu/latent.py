"""What multi-head latent attention (mla.py) needs of the CPU: the state of a sequence, and the native core."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.mla import Growth, LatentPart, LatentState
from moeinf.types import ByteArray, Float32Array, Routing

_TOKENS = 128  # whose queries exist at once


class NativeLatentCore:
    """A LatentPart, over the weights as they are stored."""

    def __init__(self, memory: HostMemory, part: LatentPart[Float32Array, Angles, Routing]) -> None:
        weights, heads, layer = memory.weights, part.heads, part.layer
        tensor = weights.tensors[part.keys_values]
        (rows, rank), rope, nope_dim = tensor.shape, heads.rope, heads.qk_nope_head_dim
        self._memory, self._kept, self._layer = memory, memory.kept, layer
        self._source = layer if heads.source is None else heads.source
        self._width = rank + rope.rotary_dim if heads.source is None else 0  # of the rows that the layer keeps
        self._sharpening, self._growth = heads.sharpening, growth_in(weights, heads.growth)
        value_dim = rows // heads.num_heads - nope_dim
        self._num_values = heads.num_heads * value_dim
        matrix = _native.Matrix(tensor.data, tensor.held_as, rows, rank)
        self._native = _native.LatentLayer(
            weights.kernels,
            matrix,
            num_heads=heads.num_heads,
            qk_nope_head_dim=nope_dim,
            value_dim=value_dim,
            rotary_dim=rope.rotary_dim,
            interleaved=rope.interleaved,
            scale=heads.scale,
            sinks=None if heads.sinks is None else weights.vector(heads.sinks),
            window=heads.window,
        )

    def new_state(self, capacity: int) -> LatentState[ByteArray]:
        return LatentState(self._memory, self._width, capacity)

    def store(self, rows: Float32Array, cache: Cache, positions: Angles) -> None:
        state: LatentState[ByteArray] = cache.states[self._layer]
        self._native.store(rows, state.rows, self._kept, cache.length, *positions)

    def at_once(self, tokens: int) -> int:
        return min(tokens, _TOKENS)

    def attend(self, queries: Float32Array, cache: Cache, positions: Angles, at: int) -> Float32Array:
        state: LatentState[ByteArray] = cache.states[self._source]
        return self._attended(self.sharpened(queries, cache.length + at), state.rows, cache.length + at, positions, at)

    def sharpened(self, queries: Float32Array, start: int) -> Float32Array:
        """start: the position of the first of their tokens."""
        s = self._sharpening
        queries = queries if s is None else queries * s.factors(start, len(queries))
        return queries if self._growth is None else self._growth(queries, start)

    def _attended(
        self, queries: Float32Array, rows: ByteArray, length: int, positions: Angles, at: int
    ) -> Float32Array:
        """Queries of the tokens from `at` of the pass; the first of them sees `length` rows and the next."""
        cos, sin = (table[at : at + len(queries)] for table in positions)
        out = self.empty_values(len(queries))
        self._native.attend(queries, rows, self._kept, length, cos, sin, out)
        return out

    def empty_values(self, tokens: int) -> Float32Array:
        """Room for what the heads give of so many tokens."""
        return np.empty((tokens, self._num_values), np.float32)


def growth_in(weights: NativeWeights, growth: Growth | None) -> Callable[[Float32Array, int], Float32Array] | None:
    """What multiplies queries [tokens, heads * head_dim], the first of which is at a position."""
    if growth is None:
        return None
    scale, bias = weights.vector(growth.scale), weights.vector(growth.bias)

    def grown(queries: Float32Array, start: int) -> Float32Array:
        steps = np.log(np.arange(start + 1, start + 1 + len(queries), dtype=np.float32))
        heads = queries.reshape(len(queries), len(scale), -1) * (steps[:, None] * scale + bias)[..., None]
        return heads.reshape(queries.shape)

    return grown
