"""Kimi Delta Attention (arXiv 2510.26692): DeltaNet whose keys have a decay for each channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import A, joined
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.protocol import LayersOf, P, R, WeightsOf
from moeinf.models.layers.recurrent.channel_delta import CHUNK, ChannelDeltaPart
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.recurrent.delta_config import SLICE
from moeinf.models.layers.recurrent.delta_net import UNIT_EPS
from moeinf.models.layers.recurrent.mixer import Recurrent
from moeinf.models.layers.recurrent.state import Piece, RecurrentState, passes
from moeinf.types import Json, Workspace

_WIDEST = 1 << 15  # numbers of all heads together


@dataclass(frozen=True, slots=True)
class KdaConfig:
    hidden_size: int
    num_heads: int
    head_dim: int  # of keys and of values
    kernel: int  # tokens that the convolutions in front see
    norm_eps: float
    whole: str = (
        ""  # "f" and "g": decays and gates are projected at once (f_proj, g_proj), not through head_dim numbers
    )
    lower_bound: float | None = None  # of the logarithms of decays, which are then lower_bound sigmoid(e^A_log step)
    decay_numbers: int = 0  # of A_log, a vector that begins with those of the heads; 0: it is [1, 1, heads, 1]
    output: str = "o_proj"  # what the projection of all heads' outputs is called

    @staticmethod
    def parse(f: Fields, hidden_size: int, norm_eps: float) -> KdaConfig:
        silu_alone(f)  # which convolutions have, too
        heads, size = f.count("linear_num_heads", 32), f.count("linear_head_dim", 128)
        if heads * size > _WIDEST:
            raise CheckpointError(f"{f.where}: {heads} heads of {size} are beyond the {_WIDEST} that moeinf computes")
        return KdaConfig(hidden_size, heads, size, f.count("linear_conv_kernel_dim", 4, minimum=2), norm_eps)

    @property
    def width(self) -> int:
        """Of queries, of keys and of values."""
        return self.num_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Of one layer: what it was before a pass and after it."""
        return 2 * 4 * ((self.kernel - 1) * 3 * self.width + self.width * self.head_dim)


def kda_shapes(c: KdaConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors of a layer."""
    shapes: Shapes = {f"{prefix}{n}_proj.weight": (c.width, c.hidden_size) for n in "qkv"}
    shapes |= {f"{prefix}{n}_conv1d.weight": (c.width, 1, c.kernel) for n in "qkv"}
    apart = [n for n in "fg" if n not in c.whole]
    shapes |= {f"{prefix}{n}_proj.weight": (c.width, c.hidden_size) for n in c.whole}
    shapes |= {f"{prefix}{n}_a_proj.weight": (c.head_dim, c.hidden_size) for n in apart}
    shapes |= {f"{prefix}{n}_b_proj.weight": (c.width, c.head_dim) for n in apart}
    return shapes | {
        f"{prefix}A_log": (c.decay_numbers,) if c.decay_numbers else (1, 1, c.num_heads, 1),
        f"{prefix}dt_bias": (c.width,),
        f"{prefix}b_proj.weight": (c.num_heads, c.hidden_size),
        f"{prefix}o_norm.weight": (c.head_dim,),
        f"{prefix}{c.output}.weight": (c.hidden_size, c.width),
    }


def kda_workspace(c: KdaConfig) -> Workspace:
    """What a slice of a pass takes: inputs and outputs, projections, convolutions and what is made of them."""
    pairs = 3 * CHUNK * CHUNK * c.width
    return Workspace(parts=SLICE * (3 * c.hidden_size + 24 * c.width), fixed=pairs, inputs=c.width)


class Kda(Generic[A]):
    """moeinf.models.layers.protocol.Attention. State and arithmetic are float32."""

    def __init__(self, layers: LayersOf[A, P, R], config: KdaConfig, site: AttentionSite) -> None:
        c, prefix, weights = config, site.prefix, layers.weights
        self._config, self._math, self._layer = config, weights.math, site.layer
        self._norm = weights.norm(NormConfig(site.front, c.norm_eps))
        self._projections = [weights.linear(f"{prefix}{n}_proj.weight") for n in "qkv"]
        self._convolutions = [Convolution(weights, f"{prefix}{n}_conv1d.", c.width, c.kernel) for n in "qkv"]
        self._steps, self._gates = (_projection(weights, f"{prefix}{n}", whole=n in c.whole) for n in "fg")
        self._rate = weights.linear(f"{prefix}b_proj.weight")
        self._decay = -self._math.exp(weights.vector(f"{prefix}A_log")[: c.num_heads])[:, None]  # [heads, 1]
        self._step = weights.vector(f"{prefix}dt_bias")
        self._head_norm = weights.norm(NormConfig(f"{prefix}o_norm.weight", c.norm_eps))
        self._output = weights.linear(f"{prefix}{c.output}.weight")
        self._rule, self._replaces = layers.make(ChannelDeltaPart()), site.replaces

    def new_state(self, capacity: int) -> RecurrentState[A]:
        c = self._config
        return RecurrentState(self._math, (c.kernel - 1, 3 * c.width), (c.num_heads, c.head_dim, c.head_dim))

    def add_rows(self, x: A, spans: Sequence[Span[object]]) -> None:
        for part, pieces in passes(x, spans, self._layer, SLICE):
            self._add_to(part, pieces)

    def _add_to(self, x: A, pieces: Sequence[Piece[A]]) -> None:
        hidden = self._norm(x)
        parts = [project(hidden) for project in (*self._projections, self._gates, self._steps, self._rate)]
        gated = [self._gated([part[piece.rows] for part in parts], piece) for piece in pieces]
        out = self._output(joined(self._math, gated))
        x[...] = out if self._replaces else x + out

    def _gated(self, parts: Sequence[A], piece: Piece[A]) -> A:
        """What the heads give of a piece's tokens, [tokens, width]; parts: what was projected of them."""
        c, math, tokens = self._config, self._math, len(parts[0])
        *mixed, gate, steps, rate = parts
        by_head = (tokens, c.num_heads, c.head_dim)
        for i, convolve in enumerate(self._convolutions):
            channels = (slice(None), slice(i * c.width, (i + 1) * c.width))
            seen = convolve(mixed[i], piece.conv[channels], piece.new_conv[channels])
            mixed[i] = math.silu(seen).reshape(*by_head)
        q, k, v = mixed
        decay, rate = self._decays((steps + self._step).reshape(*by_head)), math.sigmoid(rate)
        out = self._rule(self._unit(q) * c.head_dim**-0.5, self._unit(k), v, decay, rate, piece.heads, piece.new_heads)
        gated = self._head_norm(out.reshape(-1, c.head_dim)) * math.sigmoid(gate.reshape(-1, c.head_dim))
        return gated.reshape(tokens, c.width)

    def _decays(self, steps: A) -> A:
        """[tokens, heads, head_dim] -> the logarithms of decays."""
        math, bound = self._math, self._config.lower_bound
        return math.softplus(steps) * self._decay if bound is None else math.sigmoid(steps * -self._decay) * bound

    def _unit(self, x: A) -> A:
        return x / (self._math.sum(x * x, -1, True) + UNIT_EPS) ** 0.5


def _projection(weights: WeightsOf[A, R], prefix: str, *, whole: bool) -> Callable[[A], A]:
    if whole:
        return weights.linear(f"{prefix}_proj.weight")
    into, out_of = (weights.linear(f"{prefix}_{side}_proj.weight") for side in "ab")
    return lambda hidden: out_of(into(hidden))


def below_zero(f: Fields, name: str, value: Json) -> float:
    """What a field says a lower bound is; value: the field's, or what stands for it."""
    number = -value if isinstance(value, int | float) and not isinstance(value, bool) else value
    return -Fields({name: number}, f"{f.where}, less than 0").number(name)


def kda_mixer(c: KdaConfig, module: str = "self_attn") -> Recurrent:
    shapes, memory = partial(kda_shapes, c), kda_workspace(c)
    return Recurrent(module, shapes, memory, c.state_bytes, lambda layers, site: Kda(layers, c, site))
