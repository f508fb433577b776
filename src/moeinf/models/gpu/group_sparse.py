"""Attention to blocks of tokens that each key/value head chooses (layers/sparse/group_sparse.py) on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.vector_ops import AttentionForm
from moeinf.models.gpu.attention import DeviceAttention
from moeinf.models.gpu.block_sparse import DeviceBlockKVState, attend_chosen
from moeinf.models.gpu.indexed import turned_in_front
from moeinf.models.gpu.rotary import DevicePositions, positions_of
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, GroupIndex
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.sparse.group_sparse import group_index_matrices, group_index_norms

_NUMBERS = 1 << 22  # of scores that exist at once: 16 MiB


class DeviceGroupSparse(DeviceAttention):
    """See Layers.group_sparse.

    A single token, which is captured, chooses among all blocks of the cache, of which those behind its own count as the
    worst; and it attends to as many positions as any token may, of which what it does not see comes last.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        dtype: torch.dtype,
        config: AttentionConfig,
        site: AttentionSite,
        index: GroupIndex,
    ) -> None:
        super().__init__(weights, dtype, config, site)
        assert not config.window and config.sharpening is None
        self._index = index
        self._index_queries, self._index_keys = (weights.linear(name) for name in group_index_matrices(site))
        self._input, self._query_norm, self._key_norm = (weights.norm(n) for n in group_index_norms(site, config))

    def new_state(self, capacity: int) -> DeviceBlockKVState:
        c = self._config
        shape = (c.num_kv_heads, capacity, c.head_dim)
        return DeviceBlockKVState(self._weights.device.kind, shape, self._dtype, self._index)

    def add_to(self, x: Tensor, cache: Cache, positions: DevicePositions) -> None:
        state: DeviceBlockKVState = cache.states[self._layer]
        hidden, where = self._input(x), positions_of(positions, 0, len(x))
        cos, sin = (table.index_select(0, where)[:, None] for table in (positions.cos, positions.sin))
        keys = turned_in_front(self._key_norm(self._index_keys(hidden))[:, None], cos, sin)
        state.index_keys.index_copy_(0, where, keys[:, 0])
        queries = self._index_queries(hidden).reshape(len(x), self._index.num_heads, -1)
        self._queries = turned_in_front(self._query_norm(queries), cos, sin)
        super().add_to(x, cache, positions)

    def attend(self, q: Tensor, cache: Cache, positions: DevicePositions, form: AttentionForm, out: Tensor) -> None:
        index, tokens, capacity = self._index, len(q), cache.capacity
        dense = 0 if tokens == 1 else index.seeing_all(positions.start, tokens)
        if index.seeing_all(0, capacity) == capacity:
            dense = tokens
        if dense:
            super().attend(q[:dense], cache, positions, form, out[:dense])
        if dense == tokens:
            return
        state: DeviceBlockKVState = cache.states[self._layer]
        where = positions_of(positions, dense, tokens - dense)
        size = max(1, _NUMBERS // (index.num_heads * capacity))
        chosen = [
            self._chosen(self._queries[dense + i : dense + i + size], state.index_keys, where[i : i + size])
            for i in range(0, tokens - dense, size)
        ]
        attend_chosen(self._weights.ops.vectors, state, q, torch.cat(chosen), positions, form, out)

    def _chosen(self, queries: Tensor, keys: Tensor, where: Tensor) -> Tensor:
        """queries [tokens, heads, head_dim] -> positions in their order, [tokens, heads, most]; behind them some that a
        token does not see."""
        index, capacity = self._index, len(keys)
        count = -(-capacity // index.block)
        places, blocks = (torch.arange(n, device=where.device) for n in (capacity, count))
        scores = torch.where(places <= where[:, None, None], queries @ keys.T, -torch.inf)
        scores = torch.nn.functional.pad(scores, (0, count * index.block - capacity), value=-torch.inf)
        own = (where // index.block)[:, None, None]
        local = (blocks <= own) & (blocks > own - index.local)
        worth = torch.where(local, torch.inf, scores.view(*scores.shape[:2], count, index.block).amax(-1))
        order = torch.sort(worth, dim=-1, descending=True, stable=True)
        best = torch.where(order.values > -torch.inf, order.indices, capacity)[..., : index.num_blocks]
        inside = torch.arange(index.block, device=where.device)
        return torch.sort((best[..., None] * index.block + inside).flatten(2), dim=-1).values
