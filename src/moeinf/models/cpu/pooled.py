"""Latent attention to pools of positions, which are chosen by index keys (layers/latent/indexed.py), on the CPU."""

from __future__ import annotations

import numpy as np

from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.indexed import NativeIndexedCore, best_keys, positions_of_blocks
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.indexed import IndexedPart, IndexedState, IndexHeads, PooledPart
from moeinf.types import ByteArray, Float32Array, IntArray, Routing


class PooledState(IndexedState[ByteArray, Float32Array]):
    """`keys` has what the keys of pools are made of; these are made anew where tokens were forgotten."""

    def __init__(self, memory: HostMemory, width: int, capacity: int, index: IndexHeads) -> None:
        super().__init__(memory, width, capacity, index.kept)
        self.pools: Float32Array = np.empty((len(self.keys) // index.pool, index.head_dim), np.float32)
        self.num_pools, self._pool = 0, index.pool  # num_pools: whose keys are made

    def truncate(self, length: int) -> None:
        self.num_pools = min(self.num_pools, length // self._pool)

    def load_rows(self, start: int, rows: ByteArray) -> None:
        super().load_rows(start, rows)
        self.truncate(start)


class NativePooledCore(NativeIndexedCore):
    """A PooledPart."""

    def __init__(self, memory: HostMemory, part: PooledPart[Float32Array, Angles, Routing]) -> None:
        super().__init__(memory, IndexedPart(part.latent, part.index, keeps_keys=True))
        self._pooled = part.pooled

    def new_state(self, capacity: int) -> PooledState:
        return PooledState(self._memory, self._width, capacity, self._index)

    def store_keys(self, keys: Float32Array, cache: Cache, positions: Angles) -> None:
        state: PooledState = cache.states[self._layer]
        state.truncate(cache.length)  # a pass may have been given up
        end, size = cache.length + len(keys), self._index.pool
        state.keys[cache.length : end] = keys
        first, last = state.num_pools, end // size
        if first < last:
            tokens = state.keys[first * size : last * size].reshape(last - first, size, -1)
            state.pools[first:last] = self._pooled(tokens)
            state.num_pools = last

    def choose(
        self, queries: Float32Array, weights: Float32Array, cache: Cache, positions: Angles, at: int
    ) -> IntArray:
        """The positions of each token that does not see all, ascending, with -1 behind them."""
        state, index, tokens = cache.states[self._layer], self._index, len(queries)
        first, heads = cache.length + at, queries.reshape(tokens, index.num_heads, -1)
        beyond = self._seeing_all(tokens, first)
        ends = np.arange(first + beyond + 1, first + tokens + 1)
        pools = best_keys(
            self._kernels, heads[beyond:], weights[beyond:], state.pools[: (first + tokens) // index.pool],
            ends // index.pool, index.top_k // index.pool,
        )  # fmt: skip
        return positions_of_blocks(pools, index.pool, ends)

    def _seeing_all(self, tokens: int, first: int) -> int:
        return min(max(self._index.top_k + self._index.pool - 1 - first, 0), tokens)
