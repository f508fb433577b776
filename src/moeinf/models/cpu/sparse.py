"""Attention to blocks of tokens that an indexer chooses (layers/attention) on the CPU."""

from __future__ import annotations

import numpy as np

from moeinf import _native
from moeinf.models.cpu.attention import Angles, NativeAttention
from moeinf.models.cpu.indexed import best_keys, positions_of_blocks
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.attention.block_sparse import (
    BlockIndex,
    BlockSparsePart,
    IndexedKVState,
    index_names,
    index_norms,
)
from moeinf.models.layers.attention.group_sparse import GroupSparsePart, group_index_matrices, group_index_norms
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import AttentionConfig
from moeinf.models.layers.kv_cache import Cache, OneByOne
from moeinf.types import ByteArray, Float32Array, IntArray, Routing


class BlockKVState(IndexedKVState[ByteArray, Float32Array]):
    """Beside those, the index keys of whole blocks, which are made anew where tokens were forgotten."""

    def __init__(self, memory: HostMemory, config: AttentionConfig, index: BlockIndex, capacity: int) -> None:
        super().__init__(memory, config, index, capacity)
        self.blocks: Float32Array = np.empty((capacity // index.block, index.head_dim), np.float32)
        self.num_blocks, self._block = 0, index.block  # num_blocks: whose keys are made

    def truncate(self, length: int) -> None:
        self.num_blocks = min(self.num_blocks, length // self._block)

    def load_rows(self, start: int, rows: ByteArray) -> None:
        super().load_rows(start, rows)
        self.truncate(start)


class NativeBlockSparse(NativeAttention):
    """A BlockSparsePart. Each token chooses on its own: so it does not depend on the tokens of its call."""

    def __init__(self, memory: HostMemory, part: BlockSparsePart[Float32Array, Angles, Routing]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        super().__init__(memory, AttentionPart(config, site))
        self._fused = weights.fused
        assert site.norm is None, "no family has a norm in front of it"
        self._index = part.index
        self._projection = weights.linear(index_names(site)[0])
        self._query_norm, self._key_norm = (weights.norm(norm) for norm in index_norms(site, part.index))

    def new_state(self, capacity: int) -> BlockKVState:
        return BlockKVState(self._memory, self._config, self._index, capacity)

    add_rows = OneByOne.add_rows  # each sequence has a choice of its own

    def add_to(self, x: Float32Array, cache: Cache, positions: Angles) -> None:
        index, tokens, start = self._index, len(x), cache.length
        state: BlockKVState = cache.states[self._layer]
        state.truncate(start)  # a pass may have been given up
        projected, width = self._projection(x), index.num_heads * index.head_dim
        state.index_keys[start : start + tokens] = projected[:, width:]
        first = index.seeing_all(start, tokens)
        chosen = None
        if first < tokens:
            self._make_blocks(state, start + tokens, cache)
            queries = self._query_norm(projected[first:, :width].reshape(tokens - first, index.num_heads, -1))
            turned = self._fused.turned(queries, *(t[first:] for t in positions))
            chosen = self._chosen(turned, state, start + first)[:, None]
        self._run(x, cache, positions, chosen)

    def _make_blocks(self, state: BlockKVState, length: int, cache: Cache) -> None:
        """The keys of the whole blocks of `length` tokens: means, normed and rotated at the first token of each."""
        size, first, last = self._index.block, state.num_blocks, length // self._index.block
        if first == last:
            return
        tokens = state.index_keys[first * size : last * size].reshape(last - first, size, -1)
        keys = self._key_norm(tokens.mean(1))[:, None]
        rope = self._config.rope
        if rope is not None:
            tables = rope.within(cache.capacity, cache.reach).tables(
                first * size, (last - first) * size, cache.pictures
            )
            keys = self._fused.turned(keys, *(table[::size] for table in tables))
        state.blocks[first:last] = keys[:, 0]
        state.num_blocks = last

    def _chosen(self, queries: Float32Array, state: BlockKVState, start: int) -> IntArray:
        """queries [tokens, heads, head_dim] -> each token's positions, ascending and with -1 behind, [tokens, most]."""
        index = self._index
        ends = np.arange(start + 1, start + len(queries) + 1)
        keys = state.blocks[: (start + len(queries)) // index.block]
        blocks = best_keys(self._memory.weights.kernels, queries, None, keys, ends // index.block, index.num_blocks)
        return positions_of_blocks(blocks, index.block, ends)


class NativeGroupSparse(NativeAttention):
    """A GroupSparsePart. Each token chooses on its own: so it does not depend on the tokens of its call."""

    def __init__(self, memory: HostMemory, part: GroupSparsePart[Float32Array, Angles, Routing]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        super().__init__(memory, AttentionPart(config, site))
        self._fused = weights.fused
        self._index = part.index
        self._queries, self._keys = (weights.linear(name) for name in group_index_matrices(site))
        self._input, self._query_norm, self._key_norm = (weights.norm(n) for n in group_index_norms(site, config))

    def new_state(self, capacity: int) -> IndexedKVState[ByteArray, Float32Array]:
        return IndexedKVState(self._memory, self._config, self._index, capacity)

    add_rows = OneByOne.add_rows  # each sequence has a choice of its own

    def add_to(self, x: Float32Array, cache: Cache, positions: Angles) -> None:
        index, tokens, start = self._index, len(x), cache.length
        state: IndexedKVState[ByteArray, Float32Array] = cache.states[self._layer]
        hidden = self._input(x)
        keys = self._fused.turned(self._key_norm(self._keys(hidden))[:, None], *positions)
        state.index_keys[start : start + tokens] = keys[:, 0]
        first, chosen = index.seeing_all(start, tokens), None
        if first < tokens:
            queries = self._query_norm(self._queries(hidden[first:]).reshape(tokens - first, index.num_heads, -1))
            turned = self._fused.turned(queries, *(table[first:] for table in positions))
            chosen = self._chosen(turned, state.index_keys, start + first)
        self._run(x, cache, positions, chosen)

    def _chosen(self, queries: Float32Array, keys: Float32Array, start: int) -> IntArray:
        """queries [tokens, heads, head_dim] -> each token's positions, ascending and with -1 behind, [tokens, heads,
        most]. A token has more blocks than it may choose."""
        index, kernels, tokens = self._index, self._memory.weights.kernels, len(queries)
        ends = np.arange(start + 1, start + tokens + 1)
        num_blocks = np.repeat(-(-ends // index.block), index.num_heads)
        worth: Float32Array = np.empty((tokens * index.num_heads, num_blocks[-1]), np.float32)
        heads = queries.reshape(tokens, -1)
        _native.score_blocks(kernels, heads, keys[: start + tokens], ends, index.block, worth)
        worth[np.arange(worth.shape[1]) >= num_blocks[:, None] - index.local] = np.inf
        best: IntArray = np.empty((len(worth), index.num_blocks), np.int64)
        _native.choose_best(kernels, worth, num_blocks, best)
        chosen: IntArray = (best[:, :, None] * index.block + np.arange(index.block)).reshape(
            tokens, index.num_heads, -1
        )
        chosen[chosen >= ends[:, None, None]] = -1
        return chosen
