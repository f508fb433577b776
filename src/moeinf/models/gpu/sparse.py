"""Attention to blocks of tokens that an indexer chooses (layers/attention) on a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.gpu.vector_ops import AttentionForm, KeyValues, VectorOps
from moeinf.models.gpu.attention import DeviceAttention
from moeinf.models.gpu.rotary import DevicePositions, positions_of
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.attention.block_sparse import (
    BlockIndex,
    BlockSparsePart,
    IndexedKVState,
    index_names,
    index_norms,
)
from moeinf.models.layers.attention.group_sparse import (
    GroupIndex,
    GroupSparsePart,
    group_index_matrices,
    group_index_norms,
)
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.kv_cache import Cache

State = IndexedKVState[Tensor, Tensor]
_NUMBERS = 1 << 22  # of scores that exist at once: 16 MiB


class DeviceChosenBlocks(DeviceAttention, ABC):
    """Attention to blocks that each token chooses by index keys, but for tokens that see no more than they may choose.

    A single token, which is captured, chooses among all blocks of the cache, of which those that it may not choose
    count as the worst; and it attends to as many positions as any token may, of which what it does not see comes last.
    """

    _index: BlockIndex

    def new_state(self, capacity: int) -> State:
        return IndexedKVState(self._memory, self._config, self._index, capacity)

    def attend(self, q: Tensor, cache: Cache, positions: DevicePositions, form: AttentionForm, out: Tensor) -> None:
        index, tokens, capacity = self._index, len(q), cache.capacity
        dense = 0 if tokens == 1 else index.seeing_all(positions.start, tokens)
        if index.seeing_all(0, capacity) == capacity:
            dense = tokens
        if dense:
            super().attend(q[:dense], cache, positions, form, out[:dense])
        if dense == tokens:
            return
        state: State = cache.states[self._layer]
        chosen = self._chosen(state, positions, dense, tokens - dense)
        attend_chosen(self._weights.ops.vectors, state, q, chosen, positions, form, out)

    @abstractmethod
    def _chosen(self, state: State, positions: DevicePositions, first: int, tokens: int) -> Tensor:
        """The positions of each of the tokens in their order, [tokens, groups, most], as attend_chosen takes them."""


class DeviceBlockSparse(DeviceChosenBlocks):
    """A BlockSparsePart. Blocks that are not whole yet are not chosen."""

    def __init__(self, memory: DeviceMemory, part: BlockSparsePart[Tensor, DevicePositions, DeviceRouting]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        super().__init__(memory, AttentionPart(config, site))
        self._fused = weights.fused
        assert site.norm is None and not config.window and config.scores.sharpening is None
        self._index, self._project = part.index, weights.linear(index_names(site)[0])
        self._index_norms = [weights.norm(norm) for norm in index_norms(site, part.index)]

    def add_to(self, x: Tensor, cache: Cache, positions: DevicePositions) -> None:
        state: State = cache.states[self._layer]
        projected, width = self._project(x), self._index.num_heads * self._index.head_dim
        where = positions_of(positions, 0, len(x))
        state.index_keys.index_copy_(0, where, projected[:, width:])
        self._queries = projected[:, :width].reshape(len(x), self._index.num_heads, -1)
        super().add_to(x, cache, positions)

    def _chosen(self, state: State, positions: DevicePositions, first: int, tokens: int) -> Tensor:
        index, capacity = self._index, len(state.index_keys)
        where = positions_of(positions, first, tokens)
        queries = self._index_norms[0](self._queries[first:])
        blocks = self._blocks(state, positions)
        if self._config.rope is not None:
            cos, sin = (table.index_select(0, where) for table in (positions.cos, positions.sin))
            queries = self._fused.turned(queries, cos, sin)
        size = max(1, _NUMBERS // (index.num_heads * len(blocks)))
        best = []
        for i in range(0, tokens, size):
            scores = torch.relu(queries[i : i + size] @ blocks.T).sum(1)
            best.append(best_blocks(scores, where[i : i + size], index.num_blocks, index.block, capacity))
        return positions_of_blocks(torch.cat(best), where, index.block)[:, None]

    def _blocks(self, state: State, positions: DevicePositions) -> Tensor:
        """The keys of all blocks of the cache, [blocks, head_dim]; those that are not whole yet have no meaning."""
        size = self._index.block
        count = len(state.index_keys) // size
        keys = self._index_norms[1](state.index_keys[: count * size].reshape(count, size, -1).mean(1))[:, None]
        if self._config.rope is None:
            return keys[:, 0]
        cos, sin = (table[: count * size : size] for table in (positions.cos, positions.sin))
        return self._fused.turned(keys, cos, sin)[:, 0]


class DeviceGroupSparse(DeviceChosenBlocks):
    """A GroupSparsePart. Blocks behind a token's own are not chosen."""

    _index: GroupIndex

    def __init__(self, memory: DeviceMemory, part: GroupSparsePart[Tensor, DevicePositions, DeviceRouting]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        super().__init__(memory, AttentionPart(config, site))
        self._fused = weights.fused
        assert not config.window and config.scores.sharpening is None
        self._index = part.index
        self._index_queries, self._index_keys = (weights.linear(name) for name in group_index_matrices(site))
        self._input, self._query_norm, self._key_norm = (weights.norm(n) for n in group_index_norms(site, config))

    def add_to(self, x: Tensor, cache: Cache, positions: DevicePositions) -> None:
        state: State = cache.states[self._layer]
        hidden, where = self._input(x), positions_of(positions, 0, len(x))
        cos, sin = (table.index_select(0, where) for table in (positions.cos, positions.sin))
        keys = self._fused.turned(self._key_norm(self._index_keys(hidden))[:, None], cos, sin)
        state.index_keys.index_copy_(0, where, keys[:, 0])
        queries = self._index_queries(hidden).reshape(len(x), self._index.num_heads, -1)
        self._queries = self._fused.turned(self._query_norm(queries), cos, sin)
        super().add_to(x, cache, positions)

    def _chosen(self, state: State, positions: DevicePositions, first: int, tokens: int) -> Tensor:
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


def attend_chosen(
    vectors: VectorOps,
    state: KVState[Tensor],
    q: Tensor,
    chosen: Tensor,
    positions: DevicePositions,
    form: AttentionForm,
    out: Tensor,
) -> None:
    """The last tokens of q attend to chosen [tokens, groups, most], of which what they do not see comes last.

    There is one group for all key/value heads, or one for each, which see as many."""
    groups, most = chosen.shape[1:]
    for i, token in enumerate(range(len(q) - len(chosen), len(q))):
        seen = chosen[i] <= positions.position + token
        rows = torch.where(seen, chosen[i], 0)
        kept = (state.keys, state.values)
        if groups == 1:
            picked = [each.index_select(1, rows[0]) for each in kept]
        else:
            picked = [each.gather(1, rows[..., None].expand(-1, -1, each.shape[2])) for each in kept]
        last = (seen[0].sum(0, keepdim=True) - 1).to(torch.int32)
        vectors.attend(q[token : token + 1], KeyValues(*picked), last, most - 1, form, out[token : token + 1])


def best_blocks(scores: Tensor, where: Tensor, count: int, block: int, capacity: int) -> Tensor:
    """Scores of all blocks of the cache [tokens, blocks] to tokens at these positions -> the numbers of the best of
    those that are whole, [tokens, count]; in place of others `capacity`."""
    whole = (torch.arange(scores.shape[1], device=where.device) + 1) * block <= where[:, None] + 1
    order = torch.sort(torch.where(whole, scores, -torch.inf), dim=-1, descending=True, stable=True)
    return torch.where(order.values[:, :count] > -torch.inf, order.indices[:, :count], capacity)


def positions_of_blocks(best: Tensor, where: Tensor, block: int) -> Tensor:
    """The positions of these blocks, and of what lies behind the last whole one, in their order: [tokens, most].

    What a token does not see lies behind its position: so does a block that is not whole, as its number is large."""
    inside = torch.arange(block, device=where.device)
    of_blocks = (best[..., None] * block + inside).reshape(len(best), -1)
    rest = ((where + 1) // block * block)[:, None] + inside[:-1]
    return torch.sort(torch.cat([of_blocks, rest], 1), dim=-1).values
