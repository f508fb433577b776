"""Latent attention to chosen positions (indexed.py) on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.gpu.vector_ops import KeyValues
from moeinf.models.gpu.latent import DeviceLatentCore, growth_in
from moeinf.models.gpu.rotary import DevicePositions, positions_of
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.indexed import IndexedPart, IndexedState

NUMBERS = 1 << 22  # of scores that exist at once: 16 MiB


class DeviceIndexedCore(DeviceLatentCore):
    """An IndexedPart.

    A single token, which is captured, chooses among all positions of the cache: those behind its own have the lowest
    scores, so that what it sees comes first. Tokens of a prompt gather their rows one after the other.
    """

    def __init__(self, memory: DeviceMemory, part: IndexedPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        super().__init__(memory, part.latent)
        self._fused, self._index, self._keeps_keys = memory.weights.fused, part.index, part.keeps_keys
        self._index_growth = growth_in(memory.weights, part.index.growth) if part.keeps_keys else None

    def new_state(self, capacity: int) -> IndexedState[Tensor, Tensor]:
        return IndexedState(self._memory, self._width, capacity, self._index.head_dim if self._keeps_keys else 0)

    def store_keys(self, keys: Tensor, cache: Cache, positions: DevicePositions) -> None:
        state: IndexedState[Tensor, Tensor] = cache.states[self._layer]
        where = positions_of(positions, 0, len(keys))
        state.keys.index_copy_(0, where, self._turned(keys[:, None], positions, where)[:, 0])

    def choose(self, queries: Tensor, weights: Tensor, cache: Cache, positions: DevicePositions, at: int) -> object:
        """The positions of each token, best first, [tokens, top_k]; None where no token of the cache sees more."""
        state: IndexedState[Tensor, Tensor] = cache.states[self._layer]
        tokens, top_k = len(queries), self._index.top_k
        if cache.capacity <= top_k:
            return None
        where = positions_of(positions, at, tokens)
        queries = queries if self._index_growth is None else self._index_growth(queries, where)
        heads = self._turned(queries.view(tokens, self._index.num_heads, -1), positions, where)
        numbers = torch.arange(cache.capacity, device=queries.device)
        size = max(1, NUMBERS // (self._index.num_heads * cache.capacity))
        chosen = []
        for i in range(0, tokens, size):
            products = torch.relu(heads[i : i + size] @ state.keys.T)  # [tokens, num_heads, capacity]
            scores = torch.bmm(weights[i : i + size, None], products)[:, 0]
            scores = torch.where(numbers <= where[i : i + size, None], scores, -torch.inf)
            chosen.append(torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :top_k])
        return torch.cat(chosen)

    def attend_to(self, queries: Tensor, chosen: object, cache: Cache, positions: DevicePositions, at: int) -> Tensor:
        if chosen is None:
            return self.attend(queries, cache, positions, at)
        assert isinstance(chosen, Tensor)
        tokens, most = len(queries), self._index.most
        dense = 0 if tokens == 1 else min(max(most - positions.start - at, 0), tokens)
        out = [self.attend(queries[:dense], cache, positions, at)] if dense else []
        rows = cache.states[self._source].rows
        for token in range(dense, tokens):
            numbers, last = self._seen(chosen[token], positions.position + at + token)
            picked = rows.index_select(1, numbers)
            query, kept = queries[token : token + 1], KeyValues(picked, picked)
            out.append(self._mixed(query, kept, last, most - 1, positions, at + token))
        return torch.cat(out)

    def _seen(self, chosen: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """What a token attends to of the positions that are chosen for it, and the number of the last that counts."""
        return chosen, torch.clamp(position, max=self._index.top_k - 1)

    def _turned(self, x: Tensor, positions: DevicePositions, where: Tensor) -> Tensor:
        """x [tokens, heads, head_dim], rotated where heads are."""
        cos, sin = (table.index_select(0, where) for table in (positions.cos, positions.sin))
        index = self._index
        return self._fused.turned(x, cos, sin, at_end=index.at_end, interleaved=index.interleaved)
