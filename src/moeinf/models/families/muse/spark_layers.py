"""What Muse Spark's layers are made of: norms without weights, gates of residuals, attention between both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moeinf.models.layers.array_math import Array, ArrayMath, Hidden
from moeinf.models.layers.assemble import CommonAttention
from moeinf.models.layers.attention.own_heads import HeadsPart, heads_workspace, mixed_of_spans
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import DecoderConfig
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.protocol import Attention, Layers, Positions, Weights
from moeinf.types import Workspace

_LEAST = 1e-3  # of the square of what a residual is multiplied by
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "gate_proj", "o_proj")


@dataclass(frozen=True, slots=True)
class Behind:
    """What comes behind attention and blocks: the eps of norms there, and the temperature of the gates."""

    eps: float
    temperature: float


def normed(math: ArrayMath, x: Array, eps: float) -> Array:
    """x / rms(x), over the last dimension."""
    mean: Array = math.sum(x * x, -1, True) / x.shape[-1]
    return x * (mean + eps) ** -0.5


def scaled_norm(weights: Weights, name: str, eps: float) -> Callable[[Array], Array]:
    """A norm of x times a weight, which is stored less one: `scale first`, unlike "rms+1"."""
    scale = weights.vector(name) + 1
    return lambda x: normed(weights.math, x * scale, eps)


class ResidualGate:
    """x <- alpha x + beta added, of a number for each column: beta = sigmoid(gate / temperature), alpha^2 + beta^2 =
    1, but for the smallest alpha."""

    def __init__(self, weights: Weights, name: str, temperature: float) -> None:
        math, gate = weights.math, weights.vector(name) / temperature
        self._beta = math.sigmoid(gate)
        self._alpha = math.clip(math.sigmoid(-gate) * (self._beta + 1), _LEAST, 1) ** 0.5
        self._fused, self._zero = weights.fused, gate * 0

    def __call__(self, x: Hidden, added: Hidden) -> None:
        self._fused.add_scaled(x, added, self._beta, self._alpha, self._zero)


class SparkAttention:
    """moeinf.models.layers.protocol.Attention: heads' outputs have a norm before they are gated."""

    def __init__(self, layers: Layers, a: AttentionConfig, site: AttentionSite, behind: Behind, gate: str) -> None:
        weights = layers.weights
        self._math, self._a, self._behind = weights.math, a, behind
        self._norm = weights.norm(NormConfig(site.front, a.norm_eps, "rms+1"))
        made = (weights.linear(f"{site.prefix}{name}.weight") for name in _PROJECTIONS)
        self._q, self._k, self._v, self._gate, self._o = made
        self._residual = ResidualGate(weights, gate, behind.temperature)
        self._core = layers.make(HeadsPart(a, site.layer))

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        math, hidden = self._math, self._norm(x)
        heads = self._of_heads(self._q(hidden)), self._of_heads(self._k(hidden)), self._v(hidden)
        mixed = self._of_heads(mixed_of_spans(self._core, math, heads, spans))
        added = self._o(mixed * math.sigmoid(self._gate(hidden)))
        self._residual(x, normed(math, added, self._behind.eps))

    def _of_heads(self, x: Array) -> Array:
        """Each head with a norm of its own."""
        return normed(self._math, x.reshape(-1, self._a.head_dim), self._a.norm_eps).reshape(*x.shape)


@dataclass(frozen=True, slots=True)
class SparkMixer(CommonAttention):
    behind: Behind

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        a, hidden = self.config, decoder.attention.hidden_size
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        prefix, rows = decoder.attention_site(layer).prefix, (queries, keys, keys, queries)
        shapes: Shapes = {f"{prefix}{n}.weight": (count, hidden) for n, count in zip(_PROJECTIONS, rows, strict=False)}
        return shapes | {f"{prefix}o_proj.weight": (hidden, queries), gate_name(decoder, layer, "attention"): (hidden,)}

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return heads_workspace(self.config, 3 * self.config.num_heads * self.config.head_dim)

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> SparkAttention:
        gate = gate_name(decoder, layer, "attention")
        return SparkAttention(layers, self.config, decoder.attention_site(layer), self.behind, gate)


def gate_name(decoder: DecoderConfig, layer: int, what: str) -> str:
    return decoder.module(layer, f"post_{what}_residual_gate.gate")
