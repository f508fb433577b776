"""Zyphra's ZAYA1: attention on queries, keys and values that convolutions mix, and a router with states of its own.

A token uses one expert, or none. What layers add, and what they add it to, is shifted and scaled by number
(ZayaForCausalLM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import CommonAttention, Connections, DecoderFamily, Spec
from moeinf.models.layers.attention.own_heads import HeadsPart, heads_workspace
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, Logits, parse_decoder
from moeinf.models.layers.kv_cache import Cache, LayerState, OneByOne
from moeinf.models.layers.moe import BlockSite, Moe
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.compressed_heads import CompressedConvolutions, CompressedHeads
from moeinf.models.layers.rope import of_kind, own_shares, partial_rotary, rope_of
from moeinf.models.layers.streams.stem import PlainStem
from moeinf.types import Profiler, TensorPlan, Workspace

_ROPES = {
    "hybrid": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    "hybrid_sliding": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
_OF_INPUT = ("input_hidden_states_scale", "input_hidden_states_bias")
_SCALINGS = ("post_attention_residual_scale", "post_mlp_residual_scale")


def _parse(f: Fields) -> Spec:
    f.only("num_experts_per_tok", 1, None)
    f.only("rope_scaling", None)
    f.present("head_dim", "num_experts", "moe_intermediate_size", "router_hidden_size", "cca_time0", "cca_time1")
    decoder = _decoder(f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True)))
    decoder = replace(decoder, logits=Logits(bias=f.flag("lm_head_bias", False)))
    num_layers = decoder.num_layers
    blocks = ZayaMoe(
        routed_shape(f, ("num_experts", "num_local_experts"), 1, num_layers),
        tuple(range(num_layers)),
        0,
        f.count("moe_intermediate_size"),
        StatefulRouter,
        router_size=f.count("router_hidden_size"),
    )
    seen = f.count("cca_time0"), f.count("cca_time1")
    mixers = {i: ConvolvedAttention(decoder.attention_of(i), *seen) for i in range(num_layers)}
    return Spec(decoder, blocks, mixers, ScaledConnections())


def _decoder(f: Fields) -> DecoderConfig:
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    f.within("rope_parameters").refuse_others(*_ROPES, "rope_type")
    own_shares(f, *_ROPES)
    kinds = f.kinds("layer_types", f.count("num_hidden_layers"), *_ROPES) or ("hybrid",) * f.count("num_hidden_layers")
    first, *others = dict.fromkeys(kinds)
    decoder = parse_decoder(of_kind(f, first), norm_eps=1e-5, theta=1e4, partial=1.0)
    a = decoder.attention.seeing(_window(f, first))
    special = {}
    for other in others:
        own = of_kind(f, other)
        rope = rope_of(own, partial_rotary(own, a.head_dim), 1e4, f.count("max_position_embeddings"))
        of_other = replace(a, rope=rope).seeing(_window(f, other))
        special = {i: of_other for i, kind in enumerate(kinds) if kind == other}
    return replace(decoder, attention=a, special=special)


def _window(f: Fields, kind: str) -> int | None:
    return f.count("sliding_window") if kind == "hybrid_sliding" else None


class ScaledSum:
    """x <- (added + its bias) * its scale + (x + its bias) * its scale."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        by, bias, keep, bias_of_x = (weights.vector(f"{prefix}{name}") for name in _of_sum())
        self._add, self._numbers = weights.fused.add_scaled, (by, keep, bias * by + bias_of_x * keep)

    def put(self, x: Hidden, added: Hidden) -> None:
        self._add(x, added, *self._numbers)


def _of_sum() -> list[str]:
    return [f"{whose}_{what}" for whose in ("hidden_states", "residual") for what in ("scale", "bias")]


def _sum_shapes(prefix: str, hidden: int) -> Shapes:
    return {f"{prefix}{name}": (hidden,) for name in _of_sum()}


class ZayaAttention(OneByOne[Array, Positions]):
    """moeinf.models.layers.protocol.Attention."""

    def __init__(
        self, layers: Layers, decoder: DecoderConfig, convolutions: CompressedConvolutions, layer: int
    ) -> None:
        """The states that convolutions keep come behind those of all layers."""
        weights, site, number = layers.weights, decoder.attention_site(layer), decoder.num_layers + layer
        a, self._number = convolutions.attention, number
        self._norm = weights.norm(NormConfig(site.front, a.norm_eps))
        self.heads = CompressedHeads(layers, convolutions, site.prefix)
        self._core = layers.make(HeadsPart(a, site.layer))
        self._output = weights.linear(
            f"{site.prefix}o_proj.weight", f"{site.prefix}o_proj.bias" if a.projections.bias else None
        )
        self._sum = ScaledSum(weights, f"{decoder.module(layer, _SCALINGS[0])}.")

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        q, k, v = self.heads(self._norm(x), cache.states[self._number])
        self._sum.put(x, self._output(self._core.mixed(q, k, v, cache, positions)))


@dataclass(frozen=True, slots=True)
class ConvolvedAttention(CommonAttention):
    by_channel: int  # tokens that convolutions see
    by_head: int

    @property
    def _convolutions(self) -> CompressedConvolutions:
        return CompressedConvolutions(self.config, self.by_channel, self.by_head)

    @property
    def state_bytes(self) -> int:
        return self._convolutions.state_bytes

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        prefix, convolutions, hidden = decoder.attention_site(layer).prefix, self._convolutions, self.config.hidden_size
        shapes = convolutions.shapes(prefix) | _sum_shapes(f"{decoder.module(layer, _SCALINGS[0])}.", hidden)
        shapes[f"{prefix}o_proj.weight"] = (hidden, convolutions.queries)
        return shapes | ({f"{prefix}o_proj.bias": (hidden,)} if self.config.projections.bias else {})

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        channels = self._convolutions.queries + self._convolutions.keys
        return heads_workspace(self.config, (8 + 2 * self.by_head) * channels)

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> ZayaAttention:
        return ZayaAttention(layers, decoder, self._convolutions, layer)


class StatefulRouter:
    """An MLP over states r = W x + b, to which those of the router before are added. Chosen is the one best by softmax
    and a bias; where that is the last of all, none is used: expert 0 stands in the routing with a weight of 0."""

    before: StatefulRouter | None = None

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        assert isinstance(moe, ZayaMoe) and site.norm is not None
        weights, prefix = layers.weights, f"{site.block}gate."
        mlp = f"{prefix}router_mlp."
        self._math, self._routing, self._experts = weights.math, weights.routing, moe.moe.experts_of(site.moe_layer)
        self._norm = weights.norm(site.norm)
        self._down = weights.linear(f"{prefix}down_proj.weight", f"{prefix}down_proj.bias")
        self._mlp_norm = weights.norm(NormConfig(f"{mlp}norm.weight", site.norm.eps))
        self._inner = [weights.linear(f"{mlp}{name}.weight", f"{mlp}{name}.bias", "gelu") for name in ("fc1", "fc2")]
        self._out = weights.linear(f"{mlp}out_proj.weight")
        self._bias = weights.vector(f"{prefix}balancing_biases")
        self._scale = weights.vector(f"{prefix}router_states_scale") if site.layer else None
        self._states = weights.math.zeros((1, moe.router_size))  # of the tokens of this pass

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        hidden = self._norm(x)
        self._states = self._with_those_before(hidden, None if self.before is None else self.before._states)
        return hidden, self._chosen(self._states)

    def guess(self, x: Hidden) -> tuple[Hidden, object]:
        """The same while the router before has not chosen yet, whose states are guessed by the same x."""
        hidden, before = self._norm(x), self.before
        if before is None:
            return hidden, self._chosen(self._with_those_before(hidden, None))
        further = None if before.before is None else before.before._states
        guessed = before._with_those_before(before._norm(x), further)
        return hidden, self._chosen(self._with_those_before(hidden, guessed))

    def _with_those_before(self, hidden: Hidden, before: Array | None) -> Array:
        own = self._down(hidden)
        return own if self._scale is None or before is None else own + before * self._scale

    def _chosen(self, states: Array) -> object:
        math, inner = self._math, self._mlp_norm(states)
        for layer in self._inner:
            inner = layer(inner)
        shares = math.softmax(self._out(inner))
        ids = math.top_k(shares + self._bias, 1)
        used = ids <= self._experts - 1
        weights = math.where(used, math.take(shares, ids), 0.0)
        return self._routing(ids * used, weights)


class ZayaBlock:
    """moeinf.models.layers.protocol.RoutedBlock."""

    def __init__(
        self,
        weights: Weights,
        moe_layer: int,
        router: StatefulRouter,
        experts: Experts,
        profiler: Profiler,
        prefix: str,
    ) -> None:
        """prefix: of the numbers by which its sum is scaled."""
        self.moe_layer, self._router, self._zeros = moe_layer, router, weights.math.zeros
        self._experts, self._profiler, self._sum = experts, profiler, ScaledSum(weights, prefix)

    def router(self, x: Hidden) -> tuple[Hidden, object]:
        return self._router.guess(x)

    def add_to(self, x: Hidden) -> None:
        hidden, routing = self._router(x)
        self._profiler.lap("router")
        out = self._zeros(x.shape)
        self._experts.run(self.moe_layer, hidden, routing, out)
        self._sum.put(x, out)


@dataclass(frozen=True, slots=True)
class ZayaMoe(Moe):
    router_size: int = 0  # of a router's hidden states

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, size, hidden = Shapes(), self.router_size, decoder.attention.hidden_size
        for i in range(decoder.num_layers):
            prefix, count = f"{decoder.module(i, 'mlp')}.gate.", self.moe.experts_of(i) + 1
            shapes |= {
                f"{prefix}down_proj.weight": (size, hidden),
                f"{prefix}down_proj.bias": (size,),
                f"{prefix}router_mlp.norm.weight": (size,),
                f"{prefix}router_mlp.out_proj.weight": (count, size),
                f"{prefix}balancing_biases": (count,),
            }
            for name in ("fc1", "fc2"):
                shapes |= {
                    f"{prefix}router_mlp.{name}.weight": (size, size),
                    f"{prefix}router_mlp.{name}.bias": (size,),
                }
            if i > 0:
                shapes[f"{prefix}router_states_scale"] = (size,)
            shapes |= _sum_shapes(f"{decoder.module(i, _SCALINGS[1])}.", hidden)
        return shapes

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        """Routers stay as they are."""
        matrices = frozenset(name for name, shape in dense.items() if ".self_attn." in name and len(shape) == 2)
        return replace(Moe.plan(self, decoder, dense), matrices=matrices)

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> list[Block]:
        blocks = list[Block]()
        before: StatefulRouter | None = None
        for i in range(decoder.num_layers):
            prefix = f"{decoder.module(i, 'mlp')}."
            router = StatefulRouter(layers, self, BlockSite(i, i, prefix, decoder.block_norm(i)))
            router.before, before = before, router
            scaling = f"{decoder.module(i, _SCALINGS[1])}."
            blocks.append(ZayaBlock(layers.weights, i, router, experts, profiler, scaling))
        return blocks


class ScaledStem(PlainStem):
    """An embedding that is shifted and scaled by number, beside layers that keep further states."""

    def __init__(
        self,
        embedding: Callable[[Sequence[int]], Array],
        scale: Array,
        bias: Array,
        states: Sequence[Callable[[int], LayerState]],
    ) -> None:
        super().__init__(embedding)
        self._scale, self._bias, self._states = scale, bias, states

    def new_states(self, capacity: int) -> Sequence[LayerState]:
        return [make(capacity) for make in self._states]

    def begin(self, x: Array) -> Hidden:
        return (x + self._bias) * self._scale


@dataclass(frozen=True, slots=True)
class ScaledConnections(Connections):
    def shapes(self, decoder: DecoderConfig) -> Shapes:
        return {f"{decoder.prefix}{name}": (decoder.attention.hidden_size,) for name in _OF_INPUT}

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, attention = spec.decoder, spec.attention(layers)
        blocks = spec.blocks.make(d, layers, experts, profiler)
        scale, bias = (layers.weights.vector(d.prefix + name) for name in _OF_INPUT)
        states = [each.heads.new_state for each in attention if isinstance(each, ZayaAttention)]
        stem = ScaledStem(layers.embedding(d.embedding), scale, bias, states)
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)


class Family(DecoderFamily):
    name = "zaya"
    divisible = False  # routers hand states on, and layers have further ones
    parse = staticmethod(_parse)
