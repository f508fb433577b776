"""Gated DeltaNet (arXiv 2412.06464): linear attention with a state of fixed size instead of keys and values.

Of a head with keys k and queries q of length 1, values v, decay a in (0, 1) and rate b in (0, 1):
    S <- a S + b k (v - (a S)^T k)^T        S [key_dim, value_dim]
    out = S^T q
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A, ArrayMathOf, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import AttentionOf, HasWeights, P, Part, R
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.delta_config import SLICE, DeltaConfig, delta_shapes, delta_workspace
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, passes

CHUNK = 64  # tokens of one triangular system; the published kernels' number
UNIT_EPS = 1e-6  # under the root that gives queries and keys length 1, as in the published kernels


@dataclass(frozen=True, slots=True)
class DeltaNetPart(Part[A, P, R, AttentionOf[A, P]]):
    """Of the tensors that delta_shapes names, and the norm in front of it."""

    config: DeltaConfig
    site: AttentionSite


def delta_state(config: DeltaConfig, math: ArrayMathOf[A]) -> RecurrentState[A]:
    """`heads` is S of each value head."""
    heads = (config.num_value_heads, config.key_dim, config.value_dim)
    return RecurrentState(math, (config.kernel - 1, config.channels), heads)


class DeltaNet(Generic[A]):
    """A DeltaNetPart spelled out in the layers' math, for a GPU, and as the twin of models/cpu/delta.py.

    State and arithmetic are float32.
    """

    def __init__(self, memory: HasWeights[A], part: DeltaNetPart[A, P, R]) -> None:
        c, site, weights, prefix = part.config, part.site, memory.weights, part.site.prefix
        self._config, self._math, self._layer = c, weights.math, site.layer
        self._norm = weights.norm(None if site.norm is None else NormConfig(site.norm, c.norm_eps, c.norm))
        self._gate = self._math.sigmoid if c.sigmoid_gates else self._math.silu
        self._replaces = site.replaces
        self._projections = [
            each for name, rows in c.projections(prefix).items() for each in weights.linears(name, rows)
        ]
        self._convolution = Convolution(weights, f"{prefix}conv1d.", c.channels, c.kernel)
        self._decay = -self._math.exp(weights.vector(f"{prefix}A_log"))
        self._step = weights.vector(f"{prefix}dt_bias")
        self._head_norm = weights.norm(NormConfig(f"{prefix}norm.weight", c.norm_eps))
        self._output = weights.linear(f"{prefix}out_proj.weight")
        self._rule = DeltaRule(self._math)

    def new_state(self, capacity: int) -> RecurrentState[A]:
        return delta_state(self._config, self._math)

    def add_rows(self, x: A, spans: Sequence[Span[object]]) -> None:
        for part, pieces in passes(x, spans, self._layer, SLICE):
            self._add_to(part, pieces)

    def _add_to(self, x: A, pieces: Sequence[Piece[A]]) -> None:
        parts = self._projected(self._norm(x))
        gated = [self._gated([part[piece.rows] for part in parts], piece) for piece in pieces]
        added = self._output(joined(self._math, gated))
        if self._replaces:
            x[...] = added
        else:
            x += added

    def _gated(self, parts: Sequence[A], piece: Piece[A]) -> A:
        """What the heads give of a piece's tokens, [tokens, values]; parts: what was projected of them."""
        qkv, z, rate, step = parts
        c, math, tokens = self._config, self._math, len(qkv)
        qkv = math.silu(self._convolution(qkv, piece.conv, piece.new_conv))
        q, k = (self._unit(qkv[:, at : at + c.keys].reshape(tokens, c.num_key_heads, c.key_dim)) for at in (0, c.keys))
        v = qkv[:, 2 * c.keys :].reshape(tokens, c.num_value_heads, c.value_dim)
        decay = self._decay * math.softplus(step + self._step)  # the logarithm of `a`
        out = self._rule(q * c.key_dim**-0.5, k, v, decay, math.sigmoid(rate), piece.heads, piece.new_heads)
        gated = self._head_norm(out.reshape(-1, c.value_dim)) * self._gate(z.reshape(-1, c.value_dim))
        return gated.reshape(tokens, c.values)

    def _projected(self, hidden: A) -> tuple[A, A, A, A]:
        """[tokens, channels], then the gate [tokens, values], and of each value head what makes rate and decay."""
        c, tokens = self._config, len(hidden)
        parts = [project(hidden) for project in self._projections]
        if not c.stacked:
            qkv, z, rate, step = parts
            return qkv, z, rate, step
        share = c.num_value_heads // c.num_key_heads
        qkvz = _split(parts[0].reshape(tokens, c.num_key_heads, -1), (c.key_dim, c.key_dim, share * c.value_dim))
        rate, step = _split(parts[1].reshape(tokens, c.num_key_heads, -1), (share,))
        q, k, v, z = (part.reshape(tokens, -1) for part in qkvz)
        return (self._math.concatenate([q, k, v], 1), z, rate.reshape(tokens, -1), step.reshape(tokens, -1))

    def _unit(self, x: A) -> A:
        return x / (self._math.sum(x * x, -1, True) + UNIT_EPS) ** 0.5


class DeltaRule(Generic[A]):
    """The recurrence over the tokens of a pass, CHUNK tokens at once (arXiv 2412.06464, section 3.3).

    With decays multiplied up within the chunk, the corrections b (v - (a S)^T k) of all its tokens are the solution of
    one triangular system: each lacks what the tokens before it have written already. So a token's result depends, in
    rounding alone, on the tokens that it is computed with.
    """

    def __init__(self, math: ArrayMathOf[A]) -> None:
        self._math = math
        ones = np.ones((CHUNK, CHUNK), np.float32)
        self._seen, self._before = math.of_host(np.tril(ones)), math.of_host(np.tril(ones, -1))  # of a token: which

    def __call__(self, q: A, k: A, v: A, decay: A, rate: A, state: A, new_state: A) -> A:
        """-> [tokens, value heads, value_dim]; fills new_state, which may be state.

        q, k [tokens, key heads, key_dim]; v [tokens, value heads, value_dim]; decay (log a), rate (b) [tokens, value
        heads]; state, new_state [value heads, key_dim, value_dim].
        """
        tokens, heads, _ = q.shape
        by_head = (heads, v.shape[1] // heads)  # value heads under the key head that they share
        q, k = (part.swapaxes(0, 1)[:, None] for part in (q, k))  # [key heads, 1, tokens, key_dim]
        v, decay, rate = (part.swapaxes(0, 1).reshape(*by_head, tokens, -1) for part in (v, decay, rate))
        old, new = state.reshape(*by_head, *state.shape[1:]), new_state.reshape(*by_head, *state.shape[1:])
        outputs = []
        for start in range(0, tokens, CHUNK):
            parts = (whole[:, :, start : start + CHUNK] for whole in (q, k, v, decay, rate))
            outputs.append(self._chunk(tuple(parts), old, new))
            old = new
        out = joined(self._math, outputs, 2)
        return out.reshape(-1, tokens, v.shape[-1]).swapaxes(0, 1)

    def _chunk(self, parts: tuple[A, ...], old: A, new: A) -> A:
        """parts: as given, but [key heads, shared by, tokens, ...]; old, new [key heads, shared by, ...]."""
        q, k, v, decay, rate = parts
        math, tokens, decay = self._math, q.shape[2], decay.cumsum(2)
        passed = math.exp(decay)  # what is left at a token of the state before the chunk
        corrections = (v - (k * passed) @ old) * rate  # if there were no other tokens
        if tokens == 1:
            mixing = math.sum(q * k, -1, True)  # [key heads, 1, tokens, tokens]
        else:
            seen, before = self._seen[:tokens, :tokens], self._before[:tokens, :tokens]
            between = math.exp((decay - decay.swapaxes(2, 3)) * seen)  # from the second token to the first
            found = k @ k.swapaxes(2, 3) * between * rate * before  # by each token, of the corrections before it
            corrections = math.solve_unit_lower(found, corrections)
            mixing = q @ k.swapaxes(2, 3) * between * seen
        out = (q * passed) @ old + mixing @ corrections
        left = math.exp(decay[:, :, -1:] - decay)  # of a token's correction at the end of the chunk
        written = (k * left).swapaxes(2, 3)
        new[...] = old
        new *= passed[:, :, -1:]
        new += written * corrections if tokens == 1 else written @ corrections  # numpy's product of vectors is slow
        return out


def _split(x: A, sizes: tuple[int, ...]) -> list[A]:
    """The last dimension in pieces of these sizes, and what is left."""
    ends = np.cumsum((0, *sizes)).tolist()
    return [x[..., start:end] for start, end in zip(ends, [*ends[1:], x.shape[-1]], strict=True)]


def delta_mixer(c: DeltaConfig) -> Recurrent:
    shapes, memory = partial(delta_shapes, c), delta_workspace(c)
    return Recurrent(
        "linear_attn", shapes, memory, c.state_bytes, lambda layers, site: layers.make(DeltaNetPart(c, site))
    )
