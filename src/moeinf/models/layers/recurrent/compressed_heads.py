"""Queries, keys and values that short convolutions mix (CCA, arXiv 2510.04476; ZayaCCAProjection in transformers).

Of a token with queries q and keys k, side by side [heads of both, head_dim], after two convolutions over tokens, one of
each channel by itself and one of each head:
    q' = convolved q + (q + k) / 2              k: of the key/value head that a query's group shares
    k' = convolved k + mean over the group of (q + k) / 2
Each is brought to a length of sqrt(head_dim); keys are multiplied by a number for each head. The first half of the
values is made of the token, the second of the one before it.
"""

from __future__ import annotations

import math as numbers
from dataclasses import dataclass
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention_config import AttentionConfig, Shapes
from moeinf.models.layers.protocol import WeightsOf
from moeinf.models.layers.recurrent.state import RecurrentState

_LEAST = float(np.finfo(np.float32).eps)  # of a length
_DELAYED, _CURRENT = "v_proj_delayed", "v_proj_current"


@dataclass(frozen=True, slots=True)
class CompressedConvolutions:
    attention: AttentionConfig
    by_channel: int  # tokens that the convolution of channels sees
    by_head: int

    @property
    def queries(self) -> int:
        return self.attention.num_heads * self.attention.head_dim

    @property
    def keys(self) -> int:
        return self.attention.num_kv_heads * self.attention.head_dim

    @property
    def before(self) -> int:
        """Tokens in front of one whose queries and keys it sees."""
        return self.by_channel + self.by_head - 2

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * (self.before * (self.queries + self.keys) + self.keys // 2)

    def shapes(self, prefix: str) -> Shapes:
        hidden, channels = self.attention.hidden_size, self.queries + self.keys
        rows = {"q_proj": self.queries, "k_proj": self.keys, _CURRENT: self.keys // 2, _DELAYED: self.keys // 2}
        shapes: Shapes = {f"{prefix}qkv_proj.{name}.weight": (count, hidden) for name, count in rows.items()}
        if self.attention.projections.bias:
            shapes |= {f"{prefix}qkv_proj.{name}.bias": (count,) for name, count in rows.items()}
        return shapes | {
            f"{prefix}qkv_proj.conv_qk_depthwise.weight": (channels, 1, self.by_channel),
            f"{prefix}qkv_proj.conv_qk_depthwise.bias": (channels,),
            f"{prefix}qkv_proj.conv_qk_grouped.weight": (channels, self.attention.head_dim, self.by_head),
            f"{prefix}qkv_proj.conv_qk_grouped.bias": (channels,),
            f"{prefix}qk_norm.temp": (self.attention.num_kv_heads,),
        }


class CompressedHeads(Generic[A]):
    """norm(x) of a layer -> its queries, keys and values."""

    def __init__(self, weights: WeightsOf[A, object], config: CompressedConvolutions, prefix: str) -> None:
        c, a, own = config, config.attention, f"{prefix}qkv_proj."
        self._config, self._math = c, weights.math
        self._q, self._k, self._current = (
            weights.linear(f"{own}{name}.weight", f"{own}{name}.bias" if a.projections.bias else None)
            for name in ("q_proj", "k_proj", _CURRENT)
        )
        self._delayed = weights.linear(f"{own}{_DELAYED}.weight")  # without its bias: the first token has that alone
        self._delayed_bias = weights.vector(f"{own}{_DELAYED}.bias") if a.projections.bias else None
        taps = weights.vector(f"{own}conv_qk_depthwise.weight").reshape(-1, c.by_channel)
        self._taps = [taps[:, i] * 1.0 for i in range(c.by_channel)]
        self._tap_bias = weights.vector(f"{own}conv_qk_depthwise.bias")
        self._by_head = weights.linears(f"{own}conv_qk_grouped.weight", [a.head_dim] * (a.num_heads + a.num_kv_heads))
        self._head_bias = weights.vector(f"{own}conv_qk_grouped.bias")
        ones = weights.math.zeros((a.num_heads,)) + 1.0
        lengths = weights.math.concatenate([ones, weights.vector(f"{prefix}qk_norm.temp")], 0)
        self._lengths = lengths.reshape(1, -1, 1) * numbers.sqrt(a.head_dim)

    def new_state(self, capacity: int) -> RecurrentState[A]:
        c = self._config
        return RecurrentState(self._math, (c.before, c.queries + c.keys), (1, c.keys // 2), rows_alone=True)

    def __call__(self, hidden: A, state: RecurrentState[A]) -> tuple[A, A, A]:
        """hidden [tokens, hidden_size]; state: what the tokens before left, where these leave theirs."""
        c, math, tokens = self._config, self._math, len(hidden)
        q, k = self._q(hidden), self._k(hidden)
        convolved = self._convolved(math.concatenate([q, k], 1), state)
        heads = convolved.reshape(tokens, -1, c.attention.head_dim) + self._beside(q, k)
        length = math.clip(math.sum(heads * heads, -1, True) ** 0.5, _LEAST, float("inf"))
        both = (heads * (self._lengths / length)).reshape(tokens, c.queries + c.keys)
        return both[:, : c.queries] * 1.0, both[:, c.queries :] * 1.0, self._values(hidden, state)

    def _convolved(self, both: A, state: RecurrentState[A]) -> A:
        c, math, tokens = self._config, self._math, len(both)
        seen = math.concatenate([state.conv, both], 0)
        state.new_conv[...] = seen[len(seen) - len(state.new_conv) :]
        count, size = tokens + c.by_head - 1, c.attention.head_dim
        mixed = seen[:count] * self._taps[0]
        for i, taps in enumerate(self._taps[1:], 1):
            mixed += seen[i : i + count] * taps
        mixed += self._tap_bias
        by_head = mixed.reshape(count, -1, size).swapaxes(0, 1)
        windows = math.zeros((len(by_head), tokens, size, c.by_head))
        for i in range(c.by_head):
            windows[..., i] = by_head[:, i : i + tokens]
        given = [windows[i : i + 1].reshape(tokens, size * c.by_head) for i in range(len(windows))]
        heads = [product(x) for product, x in zip(self._by_head, given, strict=True)]
        return math.concatenate(heads, 1) + self._head_bias

    def _beside(self, q: A, k: A) -> A:
        """What is added to convolved queries and keys: [tokens, heads of both, head_dim]."""
        a, tokens = self._config.attention, len(q)
        group = a.num_heads // a.num_kv_heads
        by_group = q.reshape(tokens, a.num_kv_heads, group, a.head_dim)
        both = (by_group + k.reshape(tokens, a.num_kv_heads, 1, a.head_dim)) * 0.5
        means = self._math.sum(both, 2, False) * (1 / group)
        return self._math.concatenate([both.reshape(tokens, a.num_heads, a.head_dim), means], 1)

    def _values(self, hidden: A, state: RecurrentState[A]) -> A:
        delayed = self._math.concatenate([state.heads, self._delayed(hidden)], 0)
        state.new_heads[...] = delayed[len(delayed) - len(state.new_heads) :]
        late = delayed[: len(hidden)]
        late = late if self._delayed_bias is None else late + self._delayed_bias
        return self._math.concatenate([self._current(hidden), late], 1)
