"""Mamba (arXiv 2312.00752) with Jamba's norms (arXiv 2403.19887): a recurrence of each channel by itself.

Of a channel with value x and step d > 0, its rates A, and the key k and query q that all channels share:
    s <- e^(d A) s + d x k        s [state_size]
    out = s q + D x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moeinf.models.layers.array_math import Array, Hidden, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes, linear_shapes
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import Weights
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


class Mamba1:
    """x += mamba(norm(x)), of the tensors that mamba1_shapes names.

    Token by token: in a model of Jamba's size that costs less than a tenth of what its products do.
    """

    def __init__(self, weights: Weights, config: Mamba1Config, site: AttentionSite) -> None:
        c, prefix = config, site.prefix
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
        self._rates = -self._math.exp(weights.vector(f"{prefix}A_log")).reshape(c.inner, c.state_size)
        self._skip = weights.vector(f"{prefix}D")

    def new_state(self, capacity: int) -> RecurrentState[Array]:
        c = self._config
        return RecurrentState(self._math, (c.kernel - 1, c.inner), (c.inner, c.state_size))

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
        steps = math.softplus(self._steps(self._step_norm(made[:, : ends[0]])))
        k, q = self._key_norm(made[:, ends[0] : ends[1]]), self._query_norm(made[:, ends[1] :])
        weighted, out = values * steps, values * self._skip
        for piece in pieces:
            now = piece.new_heads
            now[...] = piece.heads
            for t in range(piece.rows.start, piece.rows.stop):
                now *= math.exp(steps[t : t + 1].T * self._rates)
                now += weighted[t : t + 1].T * k[t : t + 1]
                out[t : t + 1] = out[t : t + 1] + (now @ q[t : t + 1].T).T
        x += self._output(out * math.silu(projected[:, c.inner :]))


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
    return Recurrent("mamba", shapes, memory, c.state_bytes, lambda layers, site: Mamba1(layers.weights, c, site))
