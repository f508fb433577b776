"""Latent attention to pools of positions, which are chosen by index keys (layers/latent/indexed.py), on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.models.gpu.indexed import NUMBERS, DeviceIndexedCore
from moeinf.models.gpu.rotary import DevicePositions, positions_of
from moeinf.models.gpu.sparse import best_blocks, positions_of_blocks
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.indexed import IndexedPart, IndexedState, PooledPart


class DevicePooledCore(DeviceIndexedCore):
    """A PooledPart.

    A single token, which is captured, chooses among all pools of the cache, whose keys are made anew for that, and
    attends to as many positions as any token may, of which what it does not see comes last.
    """

    def __init__(self, memory: DeviceMemory, part: PooledPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        super().__init__(memory, IndexedPart(part.latent, part.index, keeps_keys=True))
        self._pooled = part.pooled

    def new_state(self, capacity: int) -> IndexedState[Tensor, Tensor]:
        return IndexedState(self._memory, self._width, capacity, self._index.kept)

    def store_keys(self, keys: Tensor, cache: Cache, positions: DevicePositions) -> None:
        cache.states[self._layer].keys.index_copy_(0, positions_of(positions, 0, len(keys)), keys)

    def choose(
        self, queries: Tensor, weights: Tensor, cache: Cache, positions: DevicePositions, at: int
    ) -> Tensor | None:
        """The positions of each token in their order, [tokens, most]; None where no token of the cache sees more."""
        index, tokens, capacity = self._index, len(queries), cache.capacity
        if capacity <= index.most:
            return None
        where, count = positions_of(positions, at, tokens), capacity // index.pool
        kept = cache.states[self._layer].keys[: count * index.pool]
        pools = self._pooled(kept.view(count, index.pool, -1))
        heads = queries.view(tokens, index.num_heads, -1)
        size, best = max(1, NUMBERS // (index.num_heads * count)), []
        for i in range(0, tokens, size):
            products = torch.relu(heads[i : i + size] @ pools.T)
            scores = torch.bmm(weights[i : i + size, None], products)[:, 0]
            chosen = best_blocks(scores, where[i : i + size], index.top_k // index.pool, index.pool, capacity)
            best.append(chosen)
        return positions_of_blocks(torch.cat(best), where, index.pool)

    def _seen(self, chosen: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        seen = chosen <= position
        return torch.where(seen, chosen, 0), (seen.sum(0, keepdim=True) - 1).to(torch.int32)
