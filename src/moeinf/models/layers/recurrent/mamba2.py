"""Mamba-2 (arXiv 2405.21060): a recurrence whose state decays by one number a head and token.

Of a head with values x, a step d > 0, decay a = e^(-A d), and the keys k and queries q of its group:
    S <- a S + k (d x)^T        S [state_size, head_dim]
    out = S^T q + D x
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A, ArrayMathOf, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import AttentionOf, HasWeights, P, Part, R
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.mamba_config import SLICE, MambaConfig, mamba_shapes, mamba_workspace
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, passes

CHUNK = 64  # tokens of which each is weighed for each: what that costs grows with their number


@dataclass(frozen=True, slots=True)
class Mamba2Part(Part[A, P, R, AttentionOf[A, P]]):
    """Of the tensors that mamba_shapes names, and the norm "rms" in front of it."""

    config: MambaConfig
    site: AttentionSite


@dataclass(frozen=True, slots=True)
class ScanPart(Part[A, P, R, Callable[[A, A, A, A, A, A], A]]):
    """The recurrence alone: (q, k, v, decay, state, new_state) -> out, as Scan has it."""


class Mamba2(Generic[A]):
    """A Mamba2Part spelled out in the layers' math, for a GPU, and as the twin of models/cpu/mamba.py.

    State and arithmetic are float32.
    """

    def __init__(self, memory: HasWeights[A], part: Mamba2Part[A, P, R]) -> None:
        c, site, weights, prefix = part.config, part.site, memory.weights, part.site.prefix
        self._config, self._math, self._layer, self._residual = c, weights.math, site.layer, site.residual
        self._norm = weights.norm(NormConfig(site.front, c.norm_eps))
        self._input, self._output = (
            weights.linear(f"{prefix}{name}_proj.weight", f"{prefix}{name}_proj.bias" if c.biased else None)
            for name in ("in", "out")
        )
        self._convolution = Convolution(weights, f"{prefix}conv1d.", c.channels, c.kernel)
        self._decay = -self._math.exp(weights.vector(f"{prefix}A_log"))
        self._step = weights.vector(f"{prefix}dt_bias")
        self._skip = weights.vector(f"{prefix}D").reshape(c.num_heads, 1)
        self._gate_norm = weights.vector(f"{prefix}norm.weight")
        self._scan = Scan(self._math)

    def new_state(self, capacity: int) -> RecurrentState[A]:
        return RecurrentState(self._math, self._config.conv_shape, self._config.heads_shape)

    def add_rows(self, x: A, spans: Sequence[Span[object]]) -> None:
        for part, pieces in passes(x, spans, self._layer, SLICE):
            self._add_to(part, pieces)

    def _add_to(self, x: A, pieces: Sequence[Piece[A]]) -> None:
        projected = self._input(self._norm(x))
        gated = [self._gated(projected[piece.rows], piece) for piece in pieces]
        added = self._output(joined(self._math, gated))
        x += added if self._residual == 1.0 else added * self._residual

    def _gated(self, projected: A, piece: Piece[A]) -> A:
        """What the heads give of a piece's tokens, [tokens, inner]."""
        c, math, tokens = self._config, self._math, len(projected)
        gate, steps = projected[:, : c.inner], projected[:, c.inner + c.channels :]
        mixed = projected[:, c.inner : c.inner + c.channels]
        mixed = math.silu(self._convolution(mixed, piece.conv, piece.new_conv))
        values = mixed[:, : c.inner].reshape(tokens, c.num_heads, c.head_dim)
        both = mixed[:, c.inner :].reshape(tokens, 2, c.num_groups, c.state_size)
        steps = math.softplus(steps + self._step)
        k, q = both[:, 0:1].reshape(tokens, c.num_groups, -1), both[:, 1:2].reshape(tokens, c.num_groups, -1)
        out = self._scan(q, k, values * steps[:, :, None], steps * self._decay, piece.heads, piece.new_heads)
        return self._of_groups((out + values * self._skip).reshape(tokens, c.inner) * math.silu(gate))

    def _of_groups(self, x: A) -> A:
        """An RMS norm of each group of heads."""
        groups = x.reshape(len(x), self._config.num_groups, -1)
        mean = self._math.sum(groups * groups, -1, True) / groups.shape[-1]
        return (groups / (mean + self._config.norm_eps) ** 0.5).reshape(*x.shape) * self._gate_norm


class Scan(Generic[A]):
    """The recurrence over the tokens of a pass, CHUNK tokens at once (arXiv 2405.21060, section 6)."""

    def __init__(self, math: ArrayMathOf[A]) -> None:
        self._math, self._seen = math, math.of_host(np.tril(np.ones((CHUNK, CHUNK), np.float32)))

    def __call__(self, q: A, k: A, v: A, decay: A, state: A, new_state: A) -> A:
        """-> [tokens, heads, head_dim]; fills new_state, which may be state.

        q, k [tokens, groups, state_size]; v [tokens, heads, head_dim]; decay (log a) [tokens, heads]; state, new_state
        [heads, state_size, head_dim].
        """
        tokens, groups, _ = q.shape
        by_group = (groups, v.shape[1] // groups)
        q, k = (part.swapaxes(0, 1)[:, None] for part in (q, k))  # [groups, 1, tokens, state_size]
        v, decay = (part.swapaxes(0, 1).reshape(*by_group, tokens, -1) for part in (v, decay))
        old, new = state.reshape(*by_group, *state.shape[1:]), new_state.reshape(*by_group, *state.shape[1:])
        outputs = []
        for start in range(0, tokens, CHUNK):
            parts = (whole[:, :, start : start + CHUNK] for whole in (q, k, v, decay))
            outputs.append(self._chunk(tuple(parts), old, new))
            old = new
        out = joined(self._math, outputs, 2)
        return out.reshape(-1, tokens, v.shape[-1]).swapaxes(0, 1)

    def _chunk(self, parts: tuple[A, ...], old: A, new: A) -> A:
        """parts: as given, but [groups, heads of a group, tokens, ...]; old, new [groups, heads of a group, ...]."""
        q, k, v, decay = parts
        math, tokens, decay = self._math, q.shape[2], decay.cumsum(2)
        passed = math.exp(decay)  # what is left at a token of the state before the chunk
        if tokens == 1:
            mixed = math.sum(q * k, -1, True) * v
        else:
            seen = self._seen[:tokens, :tokens]
            between = math.exp((decay - decay.swapaxes(2, 3)) * seen)  # from the second token to the first
            mixed = (q @ k.swapaxes(2, 3) * between * seen) @ v
        out = (q * passed) @ old + mixed
        written = (k * math.exp(decay[:, :, -1:] - decay)).swapaxes(2, 3)  # what of it is left behind the chunk
        new[...] = old
        new *= passed[:, :, -1:]
        new += written * v if tokens == 1 else written @ v  # numpy's product of vectors is slow
        return out


def mamba_mixer(c: MambaConfig) -> Recurrent:
    shapes, memory = partial(mamba_shapes, c), mamba_workspace(c)
    return Recurrent("mamba", shapes, memory, c.state_bytes, lambda layers, site: layers.make(Mamba2Part(c, site)))
