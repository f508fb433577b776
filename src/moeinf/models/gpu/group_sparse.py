"""Attention to blocks of tokens that each key/value head chooses (layers/sparse/group_sparse.py) on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.models.gpu.block_sparse import DeviceBlockKVState, DeviceChosenBlocks
from moeinf.models.gpu.indexed import turned_in_front
from moeinf.models.gpu.rotary import DevicePositions, positions_of
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, GroupIndex
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.sparse.group_sparse import group_index_matrices, group_index_norms

_NUMBERS = 1 << 22  # of scores that exist at once: 16 MiB


class DeviceGroupSparse(DeviceChosenBlocks):
    """See Layers.group_sparse. Blocks behind a token's own are not chosen."""

    _index: GroupIndex

    def __init__(
        self,
        weights: DeviceWeights,
        dtype: torch.dtype,
        config: AttentionConfig,
        site: AttentionSite,
        index: GroupIndex,
    ) -> None:
        super().__init__(weights, dtype, config, site)
        assert not config.window and config.scores.sharpening is None
        self._index = index
        self._index_queries, self._index_keys = (weights.linear(name) for name in group_index_matrices(site))
        self._input, self._query_norm, self._key_norm = (weights.norm(n) for n in group_index_norms(site, config))

    def add_to(self, x: Tensor, cache: Cache, positions: DevicePositions) -> None:
        state: DeviceBlockKVState = cache.states[self._layer]
        hidden, where = self._input(x), positions_of(positions, 0, len(x))
        cos, sin = (table.index_select(0, where)[:, None] for table in (positions.cos, positions.sin))
        keys = turned_in_front(self._key_norm(self._index_keys(hidden))[:, None], cos, sin)
        state.index_keys.index_copy_(0, where, keys[:, 0])
        queries = self._index_queries(hidden).reshape(len(x), self._index.num_heads, -1)
        self._queries = turned_in_front(self._query_norm(queries), cos, sin)
        super().add_to(x, cache, positions)

    def _chosen(self, state: DeviceBlockKVState, positions: DevicePositions, first: int, tokens: int) -> Tensor:
        where = positions_of(positions, first, tokens)
        size = max(1, _NUMBERS // (self._index.num_heads * len(state.index_keys)))
        chosen = [
            self._best(self._queries[first + i : first + i + size], state.index_keys, where[i : i + size])
            for i in range(0, tokens, size)
        ]
        return torch.cat(chosen)

    def _best(self, queries: Tensor, keys: Tensor, where: Tensor) -> Tensor:
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
