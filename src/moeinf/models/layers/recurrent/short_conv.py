"""A gated convolution over a few tokens in the place of attention (LFM2, Lfm2ShortConv in transformers).

Of a token with x -> (b, c, v), each [hidden]:
    out = W (c * convolution(b * v))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from moeinf.models.layers.array_math import Array, Hidden, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import Weights
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.recurrent.state import RecurrentState, passes
from moeinf.types import Workspace

SLICE = 128  # tokens that are projected at once


@dataclass(frozen=True, slots=True)
class ShortConvConfig:
    hidden_size: int
    kernel: int  # tokens that the convolution sees
    norm_eps: float
    biased: bool  # the convolution and both projections

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * (self.kernel - 1) * self.hidden_size


class ShortConv:
    """x += short_conv(norm(x)), of the tensors that short_conv_shapes names."""

    def __init__(self, weights: Weights, config: ShortConvConfig, site: AttentionSite) -> None:
        c, prefix = config, site.prefix
        self._config, self._math, self._layer = config, weights.math, site.layer
        self._norm = weights.norm(NormConfig(site.front, c.norm_eps))
        self._input, self._output = (
            weights.linear(f"{prefix}{name}_proj.weight", f"{prefix}{name}_proj.bias" if c.biased else None)
            for name in ("in", "out")
        )
        self._convolution: Convolution[Array] = Convolution(weights, f"{prefix}conv.", c.hidden_size, c.kernel)

    def new_state(self, capacity: int) -> RecurrentState[Array]:
        return RecurrentState(self._math, (self._config.kernel - 1, self._config.hidden_size), (0,))

    def add_rows(self, x: Hidden, spans: Sequence[Span[object]]) -> None:
        size = self._config.hidden_size
        for part, pieces in passes(x, spans, self._layer, SLICE):
            projected = self._input(self._norm(part))
            b, c, v = (projected[:, i * size : (i + 1) * size] for i in range(3))
            seen = b * v
            convolved = [self._convolution(seen[piece.rows], piece.conv, piece.new_conv) for piece in pieces]
            part += self._output(c * joined(self._math, convolved))


def short_conv_workspace(c: ShortConvConfig) -> Workspace:
    """What the convolution holds: input, output, projections and what is made of them."""
    return Workspace(token=9 * c.hidden_size, fixed=SLICE * 12 * c.hidden_size, inputs=c.hidden_size)


def short_conv_shapes(c: ShortConvConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that a short convolution takes."""
    shapes: Shapes = {
        f"{prefix}in_proj.weight": (3 * c.hidden_size, c.hidden_size),
        f"{prefix}out_proj.weight": (c.hidden_size, c.hidden_size),
        f"{prefix}conv.weight": (c.hidden_size, 1, c.kernel),
    }
    biases = {f"{name.removesuffix('weight')}bias": (shape[0],) for name, shape in shapes.items()}
    return shapes | (biases if c.biased else {})


def short_conv_mixer(c: ShortConvConfig) -> Recurrent:
    shapes, memory = partial(short_conv_shapes, c), short_conv_workspace(c)
    return Recurrent("conv", shapes, memory, c.state_bytes, lambda layers, site: ShortConv(layers.weights, c, site))
