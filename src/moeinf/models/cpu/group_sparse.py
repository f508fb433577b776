"""Attention to blocks of tokens that each key/value head chooses (layers/sparse/group_sparse.py) on the CPU."""

from __future__ import annotations

import numpy as np

from moeinf.models.cpu.attention import Angles, NativeAttention
from moeinf.models.cpu.block_sparse import BlockKVState
from moeinf.models.cpu.indexed import best, turned_in_front
from moeinf.models.cpu.weights import NativeWeights
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, GroupIndex
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.sparse.group_sparse import group_index_matrices, group_index_norms
from moeinf.types import Float32Array, IntArray, KVFormat


class NativeGroupSparse(NativeAttention):
    """See Layers.group_sparse. Each token chooses on its own: so it does not depend on the tokens of its call."""

    def __init__(
        self, weights: NativeWeights, kept: KVFormat, config: AttentionConfig, site: AttentionSite, index: GroupIndex
    ) -> None:
        super().__init__(weights, kept, config, site)
        self._index = index
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
