"""What multi-head latent attention (mla.py) needs of a GPU: rows that are key and value at once, products by head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeinf.device.vector_ops import VectorOps
from moeinf.models.cache import Cache
from moeinf.models.rope import Rope

_NUMBERS = 1 << 22  # of queries that exist at once: 16 MiB


class DeviceHeadMatrices:
    """moeinf.models.layers.HeadMatrices, multiplied in the type in which they are stored."""

    def __init__(self, weights: Tensor) -> None:
        """weights [heads, rows, cols] in f32, f16 or bf16."""
        self._weights = weights

    def rows(self, first: int, last: int) -> DeviceHeadProducts:
        return DeviceHeadProducts(self._weights[:, first:last].transpose(1, 2))

    def columns(self, first: int, last: int) -> DeviceHeadProducts:
        return DeviceHeadProducts(self._weights[:, first:last])


class DeviceHeadProducts:
    def __init__(self, weights: Tensor) -> None:
        """weights [heads, cols, rows]."""
        self._weights = weights

    def __call__(self, x: Tensor) -> Tensor:
        """x [heads, tokens, cols] -> [heads, tokens, rows]."""
        return torch.bmm(x.to(self._weights.dtype), self._weights).float()


class DeviceLatentState:
    """[1, capacity, width]: keys of one head, as attention takes them."""

    rewinds = True

    def __init__(self, device: torch.device, width: int, capacity: int, dtype: torch.dtype) -> None:
        self.rows = torch.zeros((1, capacity, width), dtype=dtype, device=device)

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read


class DeviceLatentCore:
    """moeinf.models.layers.LatentCore. Places are read on the device, so that a step can be captured."""

    def __init__(self, vectors: VectorOps, device: torch.device, dtype: torch.dtype, num_heads: int, width: int,
                 rope: Rope, scale: float, layer: int) -> None:
        self._vectors, self._device, self._dtype, self._layer = vectors, device, dtype, layer
        self._num_heads = num_heads
        self._width, self._rope, self._scale = width, rope, scale

    def new_state(self, capacity: int) -> DeviceLatentState:
        return DeviceLatentState(self._device, self._width, capacity, self._dtype)

    def store(self, rows: Tensor, cache: Cache, places: Any) -> None:
        state: DeviceLatentState = cache.states[self._layer]
        where = _places(places, 0, len(rows))
        turned = self._turned(rows[:, None], places, where)[:, 0]
        state.rows[0].index_copy_(0, where, turned.to(self._dtype))

    def at_once(self, length: int) -> int:
        return max(1, _NUMBERS // (self._num_heads * self._width))

    def mix(self, queries: Tensor, cache: Cache, places: Any, at: int) -> Tensor:
        tokens, heads, width = queries.shape
        state: DeviceLatentState = cache.states[self._layer]
        turned = self._turned(queries, places, _places(places, at, tokens)).reshape(tokens, heads * width)
        out = torch.empty_like(turned)
        position = places.position + at if at else places.position
        self._vectors.attend(turned, state.rows, state.rows, position, places.start + at, 0, self._scale, out)
        return out.view(tokens, heads, width)[..., : width - self._rope.rotary_dim]

    def _turned(self, x: Tensor, places: Any, where: Tensor) -> Tensor:
        """x [tokens, heads, width], the last rotary_dim of each head turned."""
        cos, sin = (table.index_select(0, where)[:, None] for table in (places.cos, places.sin))
        rest, end = torch.split(x, [self._width - self._rope.rotary_dim, self._rope.rotary_dim], -1)
        left, right = (end[..., ::2], end[..., 1::2]) if self._rope.interleaved else end.chunk(2, -1)
        return torch.cat([rest, left * cos - right * sin, right * cos + left * sin], -1)


def _places(places: Any, at: int, tokens: int) -> Tensor:
    """Of the tokens from `at` of a pass: int64 [tokens]."""
    first: Tensor = places.position
    return first + torch.arange(at, at + tokens, device=first.device)
