"""What multi-head latent attention (mla.py) needs of the CPU: the state of a sequence, and the native core."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.mla import Growth, LatentPart
from moeinf.types import ByteArray, Float32Array, KVFormat, Routing, format_bytes

_TOKENS = 128  # whose queries exist at once


class LatentState:
    """The bytes of [capacity, width] in the cache's format; pages are touched only as tokens arrive."""

    rewinds = True
    planes = 1

    def __init__(self, width: int, capacity: int, kept: KVFormat) -> None:
        self.format, self.row_bytes = kept, format_bytes(kept, (width,))
        self.data: ByteArray = np.empty(capacity * self.row_bytes, np.uint8)

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read

    def save_rows(self, start: int, into: ByteArray) -> None:
        into[0] = self.data.reshape(-1, self.row_bytes)[start : start + into.shape[1]]

    def load_rows(self, start: int, rows: ByteArray) -> None:
        self.data.reshape(-1, self.row_bytes)[start : start + rows.shape[1]] = rows[0]


class NativeLatentCore:
    """A LatentPart, over the weights as they are stored."""

    def __init__(self, memory: HostMemory, part: LatentPart[Float32Array, Angles, Routing]) -> None:
        weights, heads, layer = memory.weights, part.heads, part.layer
        tensor = weights.tensors[part.keys_values]
        (rows, rank), rope, nope_dim = tensor.shape, heads.rope, heads.qk_nope_head_dim
        self._kept, self._layer, self._width = memory.kept, layer, rank + rope.rotary_dim
        self._source = layer if heads.source is None else heads.source
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

    def new_state(self, capacity: int) -> LatentState:
        return LatentState(*self.state_of(capacity))

    def state_of(self, capacity: int) -> tuple[int, int, KVFormat]:
        """What LatentState is made of; a layer that attends to the rows of another keeps none."""
        return self._width if self._source == self._layer else 0, capacity, self._kept

    def store(self, rows: Float32Array, cache: Cache, positions: Angles) -> None:
        state: LatentState = cache.states[self._layer]
        self._native.store(rows, state.data, self._kept, cache.length, *positions)

    def at_once(self, tokens: int) -> int:
        return min(tokens, _TOKENS)

    def attend(self, queries: Float32Array, cache: Cache, positions: Angles, at: int) -> Float32Array:
        state: LatentState = cache.states[self._source]
        return self._attended(self.sharpened(queries, cache.length + at), state.data, cache.length + at, positions, at)

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
        out = np.empty((len(queries), self._num_values), np.float32)
        self._native.attend(queries, rows, self._kept, length, cos, sin, out)
        return out


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
