"""Attention of heads that a family makes itself, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moeinf.gpu.matrix import MAX_ROWS, DeviceRouting
from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues
from moeinf.models.gpu.rotary import DevicePositions, sharpened
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.attention.grouped import SCORES_AT_ONCE
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.attention_config import AttentionConfig
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
        """Of a prompt."""
        heads = self._config.num_heads

        def beside(first: int, last: int, back: Tensor) -> Tensor | None:
            if states is None or self._profiles is None:
                return None
            extent = self._profiles.shape[1]
            added = (states[first * heads : last * heads] @ self._profiles).view(-1, heads, extent).transpose(0, 1)
            added = added.gather(2, back.clamp(0, extent - 1).expand(heads, -1, -1))
            return torch.where(back < extent, added, 0.0)

        attend_by_scores(q, kept, start, self._config, out, beside, sinks)


def attend_by_scores(
    q: Tensor,
    kept: KeyValues,
    start: int,
    config: AttentionConfig,
    out: Tensor,
    beside: Callable[[int, int, Tensor], Tensor | None] = lambda first, last, back: None,
    sinks: Tensor | None = None,
) -> None:
    """Attention of a prompt's tokens, in blocks with at most SCORES_AT_ONCE scores, that are made one by one.

    q, out [tokens, heads * head_dim]; beside(first, last, back [tokens, positions]): what is added to the scores of
    some of the tokens [heads, tokens, positions], by how far back the positions lie; sinks [tokens, heads].
    """
    heads, window, end = config.num_heads, config.window, start + len(q)
    size = max(1, SCORES_AT_ONCE // (heads * (min(end, 2 * window) if window else end)))
    size = min(size, window) if window else size
    for first in range(0, len(q), size):
        last = min(first + size, len(q))
        tokens, stop = last - first, start + last
        begin = max(0, start + first + 1 - window) if window else 0
        keys, values = kept.keys[:, begin:stop], kept.values[:, begin:stop]
        by_head = q[first:last].to(keys.dtype).view(tokens, config.num_kv_heads, -1, config.head_dim)
        by_head = by_head.permute(1, 2, 0, 3)
        products = by_head.reshape(config.num_kv_heads, -1, config.head_dim) @ keys.transpose(1, 2)
        scores = (products * config.scale).float().view(config.num_kv_heads, -1, tokens, stop - begin)
        rows, places = (torch.arange(a, b, device=q.device) for a, b in ((start + first, stop), (begin, stop)))
        back = rows[:, None] - places
        if (added := beside(first, last, back)) is not None:
            scores += added.view(scores.shape)
        if config.scores.cap is not None:
            scores = config.scores.cap * torch.tanh(scores / config.scores.cap)
        unseen = back < 0 if not window else (back < 0) | (back >= window)
        scores = scores.masked_fill(unseen, -torch.inf)
        if sinks is not None:
            own = sinks[first:last].T.reshape(config.num_kv_heads, -1, tokens, 1)
            scores = torch.cat([scores, own], dim=-1)
        shares = torch.softmax(scores, -1)[..., : stop - begin].reshape(products.shape).to(values.dtype)
        out[first:last] = (shares @ values).view(*by_head.shape).permute(2, 0, 1, 3).reshape(tokens, -1)
