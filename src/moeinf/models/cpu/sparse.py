"""Attention to blocks of tokens that an indexer chooses (layers/attention) on the CPU."""

from __future__ import annotations

import numpy as np

from moeinf.models.cpu.attention import Angles, KVState, NativeAttention
from moeinf.models.cpu.indexed import best, positions_of_best, turned_in_front
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.attention.block_sparse import BlockIndex, BlockSparsePart, index_names, index_norms
from moeinf.models.layers.attention.group_sparse import GroupSparsePart, group_index_matrices, group_index_norms
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.kv_cache import Cache
from moeinf.types import ByteArray, Float32Array, IntArray, KVFormat, Routing


class BlockKVState(KVState):
    """Beside keys and values, the index keys [capacity, head_dim] of tokens, in float32, and those of whole blocks.

    Of a token keys, values and index key are saved as one row; the keys of blocks are made anew.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, capacity: int, kept: KVFormat, index: BlockIndex) -> None:
        super().__init__(num_kv_heads, head_dim, capacity, kept)
        self.index_keys: Float32Array = np.empty((capacity, index.head_dim), np.float32)
        self.blocks: Float32Array = np.empty((capacity // index.block, index.head_dim), np.float32)
        self.num_blocks, self._block = 0, index.block  # num_blocks: whose keys are made
        self._kept_planes, self.planes = self.planes, 1
        self._kept_bytes = self._kept_planes * self.row_bytes
        self.row_bytes = self._kept_bytes + 4 * index.head_dim

    def truncate(self, length: int) -> None:
        self.num_blocks = min(self.num_blocks, length // self._block)

    def save_rows(self, start: int, into: ByteArray) -> None:
        tokens = into.shape[1]
        kept: ByteArray = np.empty((self._kept_planes, tokens, self._row), np.uint8)
        super().save_rows(start, kept)
        into[0, :, : self._kept_bytes] = kept.swapaxes(0, 1).reshape(tokens, -1)
        into[0, :, self._kept_bytes :] = self.index_keys[start : start + tokens].view(np.uint8)

    def load_rows(self, start: int, rows: ByteArray) -> None:
        tokens = rows.shape[1]
        kept = rows[0, :, : self._kept_bytes].reshape(tokens, self._kept_planes, self._row)
        super().load_rows(start, kept.swapaxes(0, 1))
        self.index_keys[start : start + tokens].view(np.uint8)[...] = rows[0, :, self._kept_bytes :]
        self.truncate(start)


class NativeBlockSparse(NativeAttention):
    """A BlockSparsePart. Each token chooses on its own: so it does not depend on the tokens of its call."""

    def __init__(self, memory: HostMemory, part: BlockSparsePart[Float32Array, Angles, Routing]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        super().__init__(memory, AttentionPart(config, site))
        assert site.norm is None, "no family has a norm in front of it"
        self._index = part.index
        self._projection = weights.linear(index_names(site)[0])
        self._query_norm, self._key_norm = (weights.norm(norm) for norm in index_norms(site, part.index))

    def new_state(self, capacity: int) -> BlockKVState:
        c = self._config
        return BlockKVState(c.num_kv_heads, c.head_dim, capacity, self._kept, self._index)

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
            turned = turned_in_front(queries, *(t[first:] for t in positions))
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
            tables = rope.within(cache.capacity, cache.reach).tables(first * size, (last - first) * size)
            keys = turned_in_front(keys, *(table[::size] for table in tables))
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
        self._index = part.index
        self._queries, self._keys = (weights.linear(name) for name in group_index_matrices(site))
        self._input, self._query_norm, self._key_norm = (weights.norm(n) for n in group_index_norms(site, config))

    def new_state(self, capacity: int) -> BlockKVState:
        c = self._config
        return BlockKVState(c.num_kv_heads, c.head_dim, capacity, self._kept, self._index)

    def add_to(self, x: Float32Array, cache: Cache, positions: Angles) -> None:
        index, tokens, start = self._index, len(x), cache.length
        state: BlockKVState = cache.states[self._layer]
        hidden = self._input(x)
        keys = turned_in_front(self._key_norm(self._keys(hidden))[:, None], *positions)
        state.index_keys[start : start + tokens] = keys[:, 0]
        first, chosen = index.seeing_all(start, tokens), None
        if first < tokens:
            queries = self._query_norm(self._queries(hidden[first:]).reshape(tokens - first, index.num_heads, -1))
            turned = turned_in_front(queries, *(table[first:] for table in positions))
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
