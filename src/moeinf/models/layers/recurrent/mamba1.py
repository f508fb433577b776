"""Mamba (arXiv 2312.00752) with Jamba's norms (arXiv 2403.19887): a recurrence of each channel by itself.

Of a channel with value x and step d > 0, its rates A < 0, and the key k and query q that all channels share:
    s <- e^(d A) s + d x k        s [state_size]
    out = s q + D x
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from moeinf.models.layers.array_math import A, Array, Hidden, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes, linear_shapes
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import Layers, P, Part, R, WeightsOf
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, passes
from moeinf.types import Workspace

SLICE = 128  # tokens that are projected at once


@dataclass(frozen=True, slots=True)
class Mamba1Config:
    hidden_size: int
    inner: int  # channels
    state_size: int
    rank: int  # of what steps are made from
    kernel: int  # tokens that the convolution sees
    norm_eps: float
    conv_bias: bool
    biased: bool  # what is projected in and out

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * self.inner * (self.kernel - 1 + self.state_size)


@dataclass(frozen=True, slots=True)
class ChannelScanPart(Part[A, P, R, Callable[[A, A, A, A, A, A, A], A]]):
    """The recurrence alone: (steps, values, k, q, projected, state, new_state) -> out, as ChannelScan has it."""

    rates: str  # the tensor [channels, state_size] of ln(-A)
    skip: str  # and that of D, [channels]


class ChannelScan(Generic[A]):
    """A ChannelScanPart spelled out in the layers' math, for a GPU, and as the twin of the native one."""

    def __init__(self, weights: WeightsOf[A, R], part: ChannelScanPart[A, P, R]) -> None:
        self._math, self._skip = weights.math, weights.vector(part.skip)
        channels = len(self._skip)
        self._rates = -self._math.exp(weights.vector(part.rates)).reshape(channels, -1).swapaxes(0, 1)

    def __call__(self, steps: A, values: A, k: A, q: A, projected: A, state: A, new_state: A) -> A:
        """-> [tokens, channels]; fills new_state, which may be state.

        steps, in front of softplus, and values [tokens, channels]; k, q [tokens, state_size]; projected ends with the
        gates, [tokens, any + channels]; state, new_state [state_size, channels].
        """
        math = self._math
        steps = math.softplus(steps)
        weighted, out = values * steps, values * self._skip
        new_state[...] = state
        for t in range(len(steps)):
            new_state *= math.exp(self._rates * steps[t : t + 1])
            new_state += k[t : t + 1].swapaxes(0, 1) * weighted[t : t + 1]
            out[t : t + 1] += q[t : t + 1] @ new_state
        return out * math.silu(projected[:, -out.shape[1] :])


class Mamba1:
    """x += mamba(norm(x)), of the tensors that mamba1_shapes names."""

    def __init__(self, layers: Layers, config: Mamba1Config, site: AttentionSite) -> None:
        c, prefix, weights = config, site.prefix, layers.weights
        self._config, self._math, self._layer = config, weights.math, site.layer
        self._norm = weights.norm(NormConfig(site.front, c.norm_eps))
        self._input, self._output = (
            weights.linear(f"{prefix}{name}_proj.weight", f"{prefix}{name}_proj.bias" if c.biased else None)
            for name in ("in", "out")
        )
        self._made = weights.linear(f"{prefix}x_proj.weight")
        self._steps = weights.linear(f"{prefix}dt_proj.weight", f"{prefix}dt_proj.bias")
        self._step_norm, self._key_norm, self._query_norm = (
            weights.norm(NormConfig(f"{prefix}{name}_layernorm.weight", c.norm_eps)) for name in ("dt", "b", "c")
        )
        self._convolution: Convolution[Array] = Convolution(weights, f"{prefix}conv1d.", c.inner, c.kernel)
        self._scan = layers.make(ChannelScanPart(f"{prefix}A_log", f"{prefix}D"))

    def new_state(self, capacity: int) -> RecurrentState[Array]:
        c = self._config
        return RecurrentState(self._math, (c.kernel - 1, c.inner), (c.state_size, c.inner))

    def add_rows(self, x: Hidden, spans: Sequence[Span[object]]) -> None:
        for part, pieces in passes(x, spans, self._layer, SLICE):
            self._add_to(part, pieces)

    def _add_to(self, x: Hidden, pieces: Sequence[Piece[Array]]) -> None:
        c, math = self._config, self._math
        projected = self._input(self._norm(x))
        convolved = [
            self._convolution(projected[piece.rows, : c.inner], piece.conv, piece.new_conv) for piece in pieces
        ]
        values = math.silu(joined(math, convolved))
        made = self._made(values)
        ends = (c.rank, c.rank + c.state_size)
        steps = self._steps(self._step_norm(made[:, : ends[0]]))
        k, q = self._key_norm(made[:, ends[0] : ends[1]]), self._query_norm(made[:, ends[1] :])
        mixed = []
        for piece in pieces:
            at, states = piece.rows, (piece.heads, piece.new_heads)
            mixed.append(self._scan(steps[at], values[at], k[at], q[at], projected[at], *states))
        x += self._output(joined(math, mixed))


def mamba1_workspace(c: Mamba1Config) -> Workspace:
    """What Mamba holds: input, output, projections and what is made of them."""
    fixed = SLICE * (2 * c.hidden_size + 9 * c.inner) + 3 * c.inner * c.state_size
    return Workspace(token=9 * c.inner, fixed=fixed, inputs=max(c.inner, c.hidden_size))


def mamba1_shapes(c: Mamba1Config, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Mamba takes."""
    into = linear_shapes(f"{prefix}in_proj", 2 * c.inner, c.hidden_size, biased=c.biased)
    back = linear_shapes(f"{prefix}out_proj", c.hidden_size, c.inner, biased=c.biased)
    shapes: Shapes = {
        f"{prefix}A_log": (c.inner, c.state_size),
        f"{prefix}D": (c.inner,),
        f"{prefix}conv1d.weight": (c.inner, 1, c.kernel),
        **into,
        f"{prefix}x_proj.weight": (c.rank + 2 * c.state_size, c.inner),
        f"{prefix}dt_proj.weight": (c.inner, c.rank),
        f"{prefix}dt_proj.bias": (c.inner,),
        **back,
        f"{prefix}dt_layernorm.weight": (c.rank,),
        f"{prefix}b_layernorm.weight": (c.state_size,),
        f"{prefix}c_layernorm.weight": (c.state_size,),
    }
    return shapes | ({f"{prefix}conv1d.bias": (c.inner,)} if c.conv_bias else {})


def mamba1_mixer(c: Mamba1Config) -> Recurrent:
    shapes, memory = partial(mamba1_shapes, c), mamba1_workspace(c)
    return Recurrent("mamba", shapes, memory, c.state_bytes, lambda layers, site: Mamba1(layers, c, site))
