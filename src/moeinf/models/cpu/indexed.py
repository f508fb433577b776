"""Latent attention to chosen positions (indexed.py) on the CPU, over the native core."""

from __future__ import annotations

import math

import numpy as np

from moeinf import _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.latent import NativeLatentCore, growth_in
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.indexed import IndexedPart, IndexedState
from moeinf.types import ByteArray, Float32Array, IntArray, Routing


class NativeIndexedCore(NativeLatentCore):
    """An IndexedPart.

    Each token is scored and attends on its own, over what it sees: so it does not depend on the tokens of its call.
    """

    def __init__(self, memory: HostMemory, part: IndexedPart[Float32Array, Angles, Routing]) -> None:
        super().__init__(memory, part.latent)
        self._fused, self._kernels = memory.weights.fused, memory.weights.kernels
        self._index, self._keeps_keys = part.index, part.keeps_keys
        self._index_growth = growth_in(memory.weights, part.index.growth) if part.keeps_keys else None

    def new_state(self, capacity: int) -> IndexedState[ByteArray, Float32Array]:
        return IndexedState(self._memory, self._width, capacity, self._index.head_dim if self._keeps_keys else 0)

    def store_keys(self, keys: Float32Array, cache: Cache, positions: Angles) -> None:
        state: IndexedState[ByteArray, Float32Array] = cache.states[self._layer]
        state.keys[cache.length : cache.length + len(keys)] = self._rotated(keys[:, None], *positions)[:, 0]

    def choose(
        self, queries: Float32Array, weights: Float32Array, cache: Cache, positions: Angles, at: int
    ) -> IntArray:
        """The positions of each token that sees more than top_k, in their order: [tokens, top_k]."""
        state: IndexedState[ByteArray, Float32Array] = cache.states[self._layer]
        tokens, first = len(queries), cache.length + at
        own = [table[at : at + tokens] for table in positions]
        queries = queries if self._index_growth is None else self._index_growth(queries, first)
        heads = self._rotated(queries.reshape(tokens, self._index.num_heads, -1), *own)
        beyond, end = self._seeing_all(tokens, first), first + tokens
        seen = np.arange(first + beyond + 1, end + 1)
        return best_keys(self._kernels, heads[beyond:], weights[beyond:], state.keys[:end], seen, self._index.top_k)

    def attend_to(
        self, queries: Float32Array, chosen: object, cache: Cache, positions: Angles, at: int
    ) -> Float32Array:
        assert isinstance(chosen, np.ndarray)
        state: IndexedState[ByteArray, Float32Array] = cache.states[self._source]
        dense = len(queries) - len(chosen)
        out = self.empty_values(len(queries))
        if dense:
            out[:dense] = self.attend(queries[:dense], cache, positions, at)
        if len(chosen):
            cos, sin = (table[at + dense : at + len(queries)] for table in positions)
            choosing = self.sharpened(queries[dense:], cache.length + at + dense)
            self._native.attend_chosen(choosing, state.rows, self._kept, chosen, cos, sin, out[dense:])
        return out

    def _seeing_all(self, tokens: int, first: int) -> int:
        """How many of the tokens from position `first` see no more than they may attend to; they come first."""
        return min(max(self._index.top_k - first, 0), tokens)

    def _rotated(self, x: Float32Array, cos: Float32Array, sin: Float32Array) -> Float32Array:
        """x [tokens, heads, head_dim], rotated where heads are."""
        index = self._index
        return self._fused.turned(x, cos, sin, at_end=index.at_end, interleaved=index.interleaved)


def best_keys(
    kernels: _native.Kernels,
    heads: Float32Array,
    weights: Float32Array | None,
    keys: Float32Array,
    seen: IntArray,
    count: int,
) -> IntArray:
    """The numbers of the keys that are worth most to each token, ascending: [tokens, count].

    heads [tokens, num_heads, head_dim], weights [tokens, num_heads]; seen: how many keys each sees, more than `count`.
    """
    chosen: IntArray = np.empty((len(heads), count), np.int64)
    _native.choose_keys(kernels, heads.reshape(len(heads), math.prod(heads.shape[1:])), weights, keys, seen, chosen)
    return chosen


def positions_of_blocks(blocks: IntArray, size: int, ends: IntArray) -> IntArray:
    """The positions of chosen blocks [tokens, count], ascending, and of what lies behind the last whole block of a
    token up to its end: [tokens, count * size + size - 1], with -1 behind them."""
    within, whole = blocks.shape[1] * size, ends // size * size
    found: IntArray = np.empty((len(blocks), within + size - 1), np.int64)
    for i in range(size):  # into its place: a pass has as many of these as it has anything
        found[:, i:within:size] = blocks * size + i
    rest = whole[:, None] + np.arange(size - 1)
    found[:, within:] = np.where(rest < ends[:, None], rest, -1)
    return found
