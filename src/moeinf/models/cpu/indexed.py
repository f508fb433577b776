"""Latent attention to chosen positions (indexed.py) on the CPU: scores in numpy, attention in the native core."""

from __future__ import annotations

import numpy as np

from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.latent import NativeLatentCore, growth_in
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.indexed import IndexedPart, IndexedState
from moeinf.types import ByteArray, Float32Array, IntArray, Routing

_BLOCK = 4096  # positions that are scored at once


class NativeIndexedCore(NativeLatentCore):
    """An IndexedPart.

    Each token is scored and attends on its own, over what it sees: so it does not depend on the tokens of its call.
    """

    def __init__(self, memory: HostMemory, part: IndexedPart[Float32Array, Angles, Routing]) -> None:
        super().__init__(memory, part.latent)
        self._fused, self._index, self._keeps_keys = memory.weights.fused, part.index, part.keeps_keys
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
        beyond = range(self._seeing_all(tokens, first), tokens)
        chosen: IntArray = np.empty((len(beyond), self._index.top_k), np.int64)
        for row, token in enumerate(beyond):
            chosen[row] = best(
                scores_of(heads[token], weights[token], state.keys[: first + token + 1]), chosen.shape[1]
            )
        return chosen

    def attend_to(
        self, queries: Float32Array, chosen: object, cache: Cache, positions: Angles, at: int
    ) -> Float32Array:
        assert isinstance(chosen, np.ndarray | list)
        state: IndexedState[ByteArray, Float32Array] = cache.states[self._source]
        dense, latents = len(queries) - len(chosen), state.rows.reshape(state.room, -1)
        out = [self.attend(queries[:dense], cache, positions, at)] if dense else []
        for row, token in enumerate(range(dense, len(queries))):
            rows = latents[chosen[row]].reshape(-1)
            query = self.sharpened(queries[token : token + 1], cache.length + at + token)
            out.append(self._attended(query, rows, len(chosen[row]) - 1, positions, at + token))
        mixed: Float32Array = np.concatenate(out)
        return mixed

    def _seeing_all(self, tokens: int, first: int) -> int:
        """How many of the tokens from position `first` see no more than they may attend to; they come first."""
        return min(max(self._index.top_k - first, 0), tokens)

    def _rotated(self, x: Float32Array, cos: Float32Array, sin: Float32Array) -> Float32Array:
        """x [tokens, heads, head_dim], rotated where heads are."""
        index = self._index
        return self._fused.turned(x, cos, sin, at_end=index.at_end, interleaved=index.interleaved)


def scores_of(heads: Float32Array, weights: Float32Array, keys: Float32Array) -> Float32Array:
    """What each of the positions is worth to one token: heads [num_heads, head_dim], weights [num_heads]."""
    scores = np.empty(len(keys), np.float32)
    for start in range(0, len(keys), _BLOCK):
        products = heads @ keys[start : start + _BLOCK].T
        np.maximum(products, 0, out=products)
        scores[start : start + _BLOCK] = weights @ products
    return scores


def positions_of_best(scores: Float32Array, count: int, block: int, end: int) -> IntArray:
    """The positions of the best blocks, ascending, and of what lies behind the last whole one before `end`.

    scores: of each whole block, of which there are more than `count`."""
    blocks = best(scores, count)[:, None] * block + np.arange(block)
    found: IntArray = np.concatenate([blocks.reshape(-1), np.arange(len(scores) * block, end)])
    return found


def best(scores: Float32Array, count: int) -> IntArray:
    """The numbers of the largest, in their order; of equals the first. What is no number counts as the least."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    found: IntArray = np.sort(np.concatenate([above, equal[: count - len(above)]]))
    return found
