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
from typing import Generic, Protocol

import numpy as np

from moeinf.models.layers.array_math import A
from moeinf.models.layers.attention_config import AttentionConfig, Shapes
from moeinf.models.layers.protocol import LayersOf, P, Part, R, WeightsOf
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


class MixedHeadsOf(Protocol[A]):
    """What is in front of the products of the second convolution, and behind them."""

    def windows(self, seen: A) -> A:
        """seen [tokens + before, channels] -> [heads of both * tokens, head_dim * by_head], what each product is given:
        numbers of one channel lie side by side."""
        ...

    def level(self, products: A, q: A, k: A) -> tuple[A, A]:
        """products [heads of both * tokens, head_dim], q, k [tokens, their heads * head_dim] -> q', k' of that size."""
        ...


@dataclass(frozen=True, slots=True)
class MixedHeadsPart(Part[A, P, R, MixedHeadsOf[A]]):
    config: CompressedConvolutions
    prefix: str

    def tensors(self, weights: WeightsOf[A, object]) -> tuple[A, A, A, A]:
        """Taps [by_channel, channels] and their bias, the second convolution's bias, and the lengths of heads."""
        math, own, count = weights.math, f"{self.prefix}qkv_proj.", self.config.by_channel
        taps = weights.vector(f"{own}conv_qk_depthwise.weight").reshape(-1, count)
        rows = math.concatenate([taps[:, i].reshape(1, -1) for i in range(count)], 0)
        tap_bias, bias = (weights.vector(f"{own}conv_qk_{name}.bias") for name in ("depthwise", "grouped"))
        ones = math.zeros((self.config.attention.num_heads,)) + 1.0
        lengths = math.concatenate([ones, weights.vector(f"{self.prefix}qk_norm.temp")], 0)
        return rows, tap_bias, bias, lengths * numbers.sqrt(self.config.attention.head_dim)


class MixedHeads(Generic[A]):
    """A MixedHeadsPart spelled out in the layers' math, for a GPU, and as the twin of the native one."""

    def __init__(self, weights: WeightsOf[A, object], part: MixedHeadsPart[A, P, R]) -> None:
        self._math, self._config = weights.math, part.config
        self._taps, self._tap_bias, self._bias, self._lengths = part.tensors(weights)

    def windows(self, seen: A) -> A:
        c, size = self._config, self._config.attention.head_dim
        tokens, count = len(seen) - c.before, len(seen) - c.by_channel + 1
        mixed = seen[:count] * self._taps[:1]
        for i in range(1, c.by_channel):
            mixed += seen[i : i + count] * self._taps[i : i + 1]
        mixed += self._tap_bias
        by_head = mixed.reshape(count, -1, size).swapaxes(0, 1)
        windows = self._math.zeros((len(by_head), tokens, size, c.by_head))
        for i in range(c.by_head):
            windows[..., i] = by_head[:, i : i + tokens]
        return windows.reshape(-1, size * c.by_head)

    def level(self, products: A, q: A, k: A) -> tuple[A, A]:
        a, math, tokens = self._config.attention, self._math, len(q)
        group = a.num_heads // a.num_kv_heads
        by_group = q.reshape(tokens, a.num_kv_heads, group, a.head_dim)
        both = (by_group + k.reshape(tokens, a.num_kv_heads, 1, a.head_dim)) * 0.5
        means = math.sum(both, 2, False) * (1 / group)
        beside = math.concatenate([both.reshape(tokens, a.num_heads, a.head_dim), means], 1)
        convolved = products.reshape(-1, tokens, a.head_dim).swapaxes(0, 1)
        heads = convolved + self._bias.reshape(1, -1, a.head_dim) + beside
        length = math.clip(math.sum(heads * heads, -1, True) ** 0.5, _LEAST, float("inf"))
        level = (heads * (self._lengths.reshape(1, -1, 1) / length)).reshape(tokens, -1)
        return level[:, : q.shape[1]] * 1.0, level[:, q.shape[1] :] * 1.0


class CompressedHeads(Generic[A]):
    """norm(x) of a layer -> its queries, keys and values."""

    def __init__(self, layers: LayersOf[A, P, R], config: CompressedConvolutions, prefix: str) -> None:
        c, a, own, weights = config, config.attention, f"{prefix}qkv_proj.", layers.weights
        self._config, self._math = c, weights.math
        self._q, self._k, self._current = (
            weights.linear(f"{own}{name}.weight", f"{own}{name}.bias" if a.projections.bias else None)
            for name in ("q_proj", "k_proj", _CURRENT)
        )
        self._delayed = weights.linear(f"{own}{_DELAYED}.weight")  # without its bias: the first token has that alone
        self._delayed_bias = weights.vector(f"{own}{_DELAYED}.bias") if a.projections.bias else None
        self._products = weights.linears(f"{own}conv_qk_grouped.weight", [a.head_dim] * (a.num_heads + a.num_kv_heads))
        self._mixed = layers.make(MixedHeadsPart(c, prefix))

    def new_state(self, capacity: int) -> RecurrentState[A]:
        c = self._config
        return RecurrentState(self._math, (c.before, c.queries + c.keys), (1, c.keys // 2), rows_alone=True)

    def __call__(self, hidden: A, state: RecurrentState[A]) -> tuple[A, A, A]:
        """hidden [tokens, hidden_size]; state: what the tokens before left, where these leave theirs."""
        math, tokens = self._math, len(hidden)
        q, k = self._q(hidden), self._k(hidden)
        seen = math.concatenate([state.conv, math.concatenate([q, k], 1)], 0)
        state.new_conv[...] = seen[len(seen) - len(state.new_conv) :]
        given = self._mixed.windows(seen)
        heads = [product(given[i * tokens : (i + 1) * tokens]) for i, product in enumerate(self._products)]
        q, k = self._mixed.level(math.concatenate(heads, 0), q, k)
        return q, k, self._values(hidden, state)

    def _values(self, hidden: A, state: RecurrentState[A]) -> A:
        delayed = self._math.concatenate([state.heads, self._delayed(hidden)], 0)
        state.new_heads[...] = delayed[len(delayed) - len(state.new_heads) :]
        late = delayed[: len(hidden)]
        late = late if self._delayed_bias is None else late + self._delayed_bias
        return self._math.concatenate([self._current(hidden), late], 1)
