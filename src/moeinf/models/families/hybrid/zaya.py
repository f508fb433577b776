"""Zyphra's ZAYA1: attention on queries, keys and values that convolutions mix, and a router with states of its own.

A token uses one expert, or none. What layers add, and what they add it to, is shifted and scaled by number
(ZayaForCausalLM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention.own_heads import HeadsPart, heads_workspace
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, Logits, parse_decoder
from moeinf.models.layers.kv_cache import Cache, LayerState, OneByOne
from moeinf.models.layers.moe_plan import GatedExperts
from moeinf.models.layers.protocol import Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.compressed_heads import CompressedConvolutions, CompressedHeads
from moeinf.models.layers.rope import of_kind, partial_rotary, rope_of
from moeinf.models.layers.streams.stem import PlainStem
from moeinf.types import JsonObject, MoeShape, Profiler, TensorPlan, Workspace

_ROPES = {
    "hybrid": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    "hybrid_sliding": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}
_SCALINGS = ("post_attention_residual_scale", "post_mlp_residual_scale")


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    intermediate_size: int
    router_size: int  # of a router's hidden states
    by_channel: int  # tokens that convolutions see
    by_head: int

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("num_experts_per_tok", 1, None)
        f.only("partial_rotary_factor", None)  # each kind of layer has its own
        f.only("rope_scaling", None)
        f.present("head_dim", "num_experts", "moe_intermediate_size", "router_hidden_size", "cca_time0", "cca_time1")
        decoder = _decoder(f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True)))
        return Config(
            replace(decoder, logits=Logits(bias=f.flag("lm_head_bias", False))),
            routed_shape(f, ("num_experts", "num_local_experts"), 1, decoder.num_layers),
            f.count("moe_intermediate_size"),
            f.count("router_hidden_size"),
            f.count("cca_time0"),
            f.count("cca_time1"),
        )

    def convolutions(self, layer: int) -> CompressedConvolutions:
        return CompressedConvolutions(self.decoder.attention_of(layer), self.by_channel, self.by_head)


def _decoder(f: Fields) -> DecoderConfig:
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    f.within("rope_parameters").refuse_others(*_ROPES, "rope_type")
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
        self._scale, self._bias, self._of_x, self._bias_of_x = (weights.vector(f"{prefix}{name}") for name in _of_sum())

    def put(self, x: Hidden, added: Hidden) -> None:
        x[...] = (added + self._bias) * self._scale + (x + self._bias_of_x) * self._of_x


def _of_sum() -> list[str]:
    return [f"{whose}_{what}" for whose in ("hidden_states", "residual") for what in ("scale", "bias")]


class ZayaAttention(OneByOne[Array, Positions]):
    """moeinf.models.layers.protocol.Attention."""

    def __init__(self, layers: Layers, c: Config, site: AttentionSite, number: int) -> None:
        """number: of the state in the cache that convolutions keep."""
        weights, convolutions = layers.weights, c.convolutions(site.layer)
        a, self._number = convolutions.attention, number
        self._norm = weights.norm(NormConfig(site.front, a.norm_eps))
        self.heads = CompressedHeads[Array](weights, convolutions, site.prefix)
        self._core = layers.make(HeadsPart(a, site.layer))
        self._output = weights.linear(
            f"{site.prefix}o_proj.weight", f"{site.prefix}o_proj.bias" if a.projections.bias else None
        )
        self._sum = ScaledSum(weights, f"{c.decoder.module(site.layer, _SCALINGS[0])}.")

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        q, k, v = self.heads(self._norm(x), cache.states[self._number])
        self._sum.put(x, self._output(self._core.mixed(q, k, v, cache, positions)))


class StatefulRouter:
    """An MLP over states r = W x + b, to which those of the router before are added. Chosen is the one best by softmax
    and a bias; where that is the last of all, none is used: expert 0 stands in the routing with a weight of 0."""

    def __init__(
        self, weights: Weights, c: Config, prefix: str, norm: NormConfig, experts: int, before: StatefulRouter | None
    ) -> None:
        mlp = f"{prefix}router_mlp."
        self._math, self._routing, self._experts, self._before = weights.math, weights.routing, experts, before
        self._norm = weights.norm(norm)
        self._down = weights.linear(f"{prefix}down_proj.weight", f"{prefix}down_proj.bias")
        self._mlp_norm = weights.norm(NormConfig(f"{mlp}norm.weight", norm.eps))
        self._inner = [weights.linear(f"{mlp}{name}.weight", f"{mlp}{name}.bias") for name in ("fc1", "fc2")]
        self._out = weights.linear(f"{mlp}out_proj.weight")
        self._bias = weights.vector(f"{prefix}balancing_biases")
        self._scale = None if before is None else weights.vector(f"{prefix}router_states_scale")
        self._states = weights.math.zeros((1, c.router_size))  # of the tokens of this pass

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        hidden = self._norm(x)
        self._states = self._with_those_before(hidden, None if self._before is None else self._before._states)
        return hidden, self._chosen(self._states)

    def guess(self, x: Hidden) -> tuple[Hidden, object]:
        """The same while the router before has not chosen yet, whose states are guessed by the same x."""
        hidden, before = self._norm(x), self._before
        if before is None:
            return hidden, self._chosen(self._with_those_before(hidden, None))
        further = None if before._before is None else before._before._states
        guessed = before._with_those_before(before._norm(x), further)
        return hidden, self._chosen(self._with_those_before(hidden, guessed))

    def _with_those_before(self, hidden: Hidden, before: Array | None) -> Array:
        own = self._down(hidden)
        return own if self._scale is None or before is None else own + before * self._scale

    def _chosen(self, states: Array) -> object:
        math, inner = self._math, self._mlp_norm(states)
        for layer in self._inner:
            inner = math.gelu(layer(inner))
        shares = math.softmax(self._out(inner))
        ids = math.top_k(shares + self._bias, 1)
        used = ids <= self._experts - 1
        weights = math.where(used, math.take(shares, ids), 0.0)
        return self._routing(ids * used, weights)


class ZayaBlock:
    """moeinf.models.layers.protocol.RoutedBlock."""

    def __init__(
        self, moe_layer: int, router: StatefulRouter, experts: Experts, profiler: Profiler, total: ScaledSum
    ) -> None:
        self.moe_layer, self._router = moe_layer, router
        self._experts, self._profiler, self._sum = experts, profiler, total

    def router(self, x: Hidden) -> tuple[Hidden, object]:
        return self._router.guess(x)

    def add_to(self, x: Hidden) -> None:
        hidden, routing = self._router(x)
        self._profiler.lap("router")
        out = x * 0
        self._experts.run(self.moe_layer, hidden, routing, out)
        self._sum.put(x, out)


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


class Family(DecoderFamily):
    name = "zaya"
    divisible = False  # routers hand states on, and layers have further ones

    def __init__(self, config: JsonObject) -> None:
        c = self._config = Config.parse(Fields(config))
        self.decoder, self.moe = c.decoder, c.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, d, weights = self._config, self.decoder, layers.weights
        count = d.num_layers
        attention = [ZayaAttention(layers, c, d.attention_site(i), count + i) for i in range(count)]
        blocks, router = list[ZayaBlock](), None
        for i in range(count):
            prefix = f"{d.module(i, 'mlp')}.gate."
            router = StatefulRouter(weights, c, prefix, d.block_norm(i), c.moe.experts_of(i), router)
            total = ScaledSum(weights, f"{d.module(i, _SCALINGS[1])}.")
            blocks.append(ZayaBlock(i, router, experts, profiler, total))
        scale, bias = (weights.vector(f"{d.prefix}input_hidden_states_{name}") for name in ("scale", "bias"))
        stem = ScaledStem(layers.embedding(d.embedding), scale, bias, [each.heads.new_state for each in attention])
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def attention_shapes(self) -> Shapes:
        c, d = self._config, self.decoder
        hidden = d.attention.hidden_size
        shapes: Shapes = {f"{d.prefix}input_hidden_states_{name}": (hidden,) for name in ("scale", "bias")}
        for i in range(d.num_layers):
            prefix, convolutions = f"{d.module(i, 'self_attn')}.", c.convolutions(i)
            shapes |= convolutions.shapes(prefix)
            shapes[f"{prefix}o_proj.weight"] = (hidden, convolutions.queries)
            if d.attention.projections.bias:
                shapes[f"{prefix}o_proj.bias"] = (hidden,)
            for part in _SCALINGS:
                shapes |= {f"{d.module(i, part)}.{name}": (hidden,) for name in _of_sum()}
        return shapes

    def block_shapes(self) -> Shapes:
        c, d, shapes = self._config, self.decoder, Shapes()
        size = c.router_size
        for i in range(d.num_layers):
            prefix, count = f"{d.module(i, 'mlp')}.gate.", c.moe.experts_of(i) + 1
            shapes |= {
                f"{prefix}down_proj.weight": (size, d.attention.hidden_size),
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
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        c, d = self._config, self.decoder
        blocks = [f"{d.module(i, 'mlp')}." for i in range(d.num_layers)]
        plan = self.gated_experts(GatedExperts(blocks, c.intermediate_size, ("gate_proj", "up_proj", "down_proj")))
        # Routers stay as they are.
        matrices = (name for name, shape in self.dense.items() if ".self_attn." in name and len(shape) == 2)
        return replace(plan, matrices=frozenset(matrices))

    @property
    def attention_workspace(self) -> Workspace:
        c, found = self._config, Workspace()
        for i in range(self.decoder.num_layers):
            convolutions = c.convolutions(i)
            channels = convolutions.queries + convolutions.keys
            found |= heads_workspace(convolutions.attention, (8 + 2 * c.by_head) * channels)
        return found

    @property
    def state_bytes(self) -> int:
        return sum(self._config.convolutions(i).state_bytes for i in range(self.decoder.num_layers))
