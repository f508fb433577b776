"""Attention to blocks of tokens that an indexer chooses (layers/attention) on the CPU."""

from __future__ import annotations

import numpy as np

from moeinf.models.cpu.attention import Angles, NativeAttention
from moeinf.models.cpu.indexed import best, positions_of_best
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
        chosen: IntArray = np.full((len(queries), index.most), -1, np.int64)
        for token, heads in enumerate(queries):
            end = start + token + 1
            scores = np.maximum(state.blocks[: end // index.block] @ heads.T, 0).sum(1)
            positions = positions_of_best(scores, index.num_blocks, index.block, end)
            chosen[token, : len(positions)] = positions
        return chosen


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
        index = self._index
        chosen: IntArray = np.full((len(queries), index.num_heads, index.most), -1, np.int64)
        for token, heads in enumerate(queries):
            end = start + token + 1
            worth = np.maximum.reduceat(keys[:end] @ heads.T, np.arange(0, end, index.block))
            worth[len(worth) - index.local :] = np.inf
            for head in range(index.num_heads):
                blocks = best(worth[:, head], index.num_blocks)[:, None] * index.block + np.arange(index.block)
                positions = blocks.reshape(-1)
                seen = positions[positions < end]
                chosen[token, head, : len(seen)] = seen
        return chosen
