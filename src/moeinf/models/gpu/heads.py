"""Attention of heads that a family makes itself, on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.matrix import MAX_ROWS, DeviceRouting
from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues
from moeinf.models.gpu.rotary import DevicePositions, sharpened
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.attention.own_heads import SCORES_AT_ONCE, HeadsPart
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.kv_cache import Cache


class DeviceHeadsCore:
    """A HeadsPart."""

    def __init__(self, memory: DeviceMemory, part: HeadsPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        weights = memory.weights
        self._memory, self._config, self._layer = memory, part.config, part.layer
        self._vectors = weights.ops.vectors
        self._profiles = None if part.profiles is None else weights.table(part.profiles)  # [width, extent]
        self._scale = part.config.scale

    def new_state(self, capacity: int) -> KVState[Tensor]:
        c = self._config
        return KVState(self._memory, c.num_kv_heads, c.head_dim, capacity)

    def mixed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: Cache,
        positions: DevicePositions,
        *,
        relative: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        c, tokens = self._config, len(q)
        state: KVState[Tensor] = cache.states[self._layer]
        if c.scores.sharpening is not None:
            factors = sharpened(c.scores.sharpening, positions, 0, tokens)
            q = q * factors
            relative = None if relative is None else relative * factors
        turned, rope = slice(0, None if c.rope is not None else 0), c.rope
        form = HeadForm(positions.cos[:, turned], positions.sin[:, turned], rope is not None and rope.interleaved)
        kept, out = KeyValues(state.keys, state.values), torch.empty_like(q)
        self._vectors.rope_store(q, k.contiguous(), v.contiguous(), form, positions.position, kept)
        states = None if relative is None else relative.reshape(tokens * c.num_heads, -1)
        if tokens > MAX_ROWS and (states is not None or sinks is not None):
            self._attend_many(q, kept, positions.start, states, sinks, out)
            return out
        bias = None if states is None or self._profiles is None else states @ self._profiles
        scores = AttentionForm(self._scale, c.window, None if sinks is None else sinks.contiguous(), bias)
        self._vectors.attend(q, kept, positions.position, positions.start, scores, out)
        return out

    def _attend_many(
        self, q: Tensor, kept: KeyValues, start: int, states: Tensor | None, sinks: Tensor | None, out: Tensor
    ) -> None:
        """Of a prompt, in blocks of tokens with at most SCORES_AT_ONCE scores."""
        heads, window, end = self._config.num_heads, self._config.window, start + len(q)
        size = max(1, SCORES_AT_ONCE // (heads * (min(end, 2 * window) if window else end)))
        size = min(size, window) if window else size
        for first in range(0, len(q), size):
            tokens = slice(first, first + size)
            of_block = None if states is None else states[first * heads : (first + size) * heads]
            sink = None if sinks is None else sinks[tokens]
            out[tokens] = self._attended(q[tokens], kept, start + first, of_block, sink)

    def _attended(self, q: Tensor, kept: KeyValues, start: int, states: Tensor | None, sinks: Tensor | None) -> Tensor:
        c, tokens, end = self._config, len(q), start + len(q)
        begin = max(0, start + 1 - c.window) if c.window else 0
        keys, values = kept.keys[:, begin:end], kept.values[:, begin:end]
        by_head = q.to(keys.dtype).view(tokens, c.num_kv_heads, -1, c.head_dim).permute(1, 2, 0, 3)
        products = by_head.reshape(c.num_kv_heads, -1, c.head_dim) @ keys.transpose(1, 2)
        scores = (products * self._scale).float().view(c.num_kv_heads, -1, tokens, end - begin)
        rows, places = (torch.arange(a, b, device=q.device) for a, b in ((start, end), (begin, end)))
        back = rows[:, None] - places
        if states is not None and self._profiles is not None:
            extent = self._profiles.shape[1]
            added = (states @ self._profiles).view(tokens, c.num_heads, extent).transpose(0, 1)
            added = added.gather(2, back.clamp(0, extent - 1).expand(c.num_heads, -1, -1))
            scores += torch.where(back < extent, added, 0.0).view(scores.shape)
        unseen = back < 0 if not c.window else (back < 0) | (back >= c.window)
        scores = scores.masked_fill(unseen, -torch.inf)
        if sinks is not None:
            own = sinks.T.reshape(c.num_kv_heads, -1, tokens, 1)
            scores = torch.cat([scores, own], dim=-1)
        shares = torch.softmax(scores, -1)[..., : end - begin].reshape(products.shape).to(values.dtype)
        return (shares @ values).view(*by_head.shape).permute(2, 0, 1, 3).reshape(q.shape)
