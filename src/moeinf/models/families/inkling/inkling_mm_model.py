"""Thinking Machines' Inkling (InklingForConditionalGeneration in transformers).

Attention has no positions: each token adds to its scores by how far back a place lies. Keys, values and what attention
and blocks add go through short convolutions. Shared experts are weighted by the router beside the others. A tower sees
pictures; what checkpoints hear by is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from moeinf.models.families.inkling.relative_decoder import (
    ATTENTION,
    BLOCK,
    KEYS,
    PROJECTIONS,
    VALUES,
    InterleavedMoe,
    NormedConnections,
    RelativeAttention,
    parse_relative,
    text_fields,
)
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Array, ArrayMath, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention.own_heads import HeadsPart, mixed_of_spans
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring, Shared, sparse_layers
from moeinf.models.layers.moe_block import DenseBlock, MoeBlock
from moeinf.models.layers.moe_plan import block_workspace
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.streams.stem import NormedStem
from moeinf.models.layers.vision.of_families.inkling_vision import RENAMED, inkling_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.layers.weights import as_matrix
from moeinf.models.widened import widened
from moeinf.types import JsonObject, Profiler, Workspace

_NORMS = LayerNorms("attn_norm", None, "mlp_norm")


def _parse(f: Fields) -> Spec:
    f.only("shared_expert_sink", True, None)
    f.present("n_shared_experts", "route_scale")
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    dense, expert = _widths(f)
    layers = sparse_layers(f, num_layers, first_dense=f.count("dense_mlp_idx", 0, minimum=0), counted="dense_mlp_idx")
    decoder, attention = parse_relative(f, num_layers, scale=lambda size: 1 / size)
    width = f.number("logits_mup_width_multiplier", f.number("embedding_multiplier", 24.0))
    f.only("embedding_multiplier", width, None)
    decoder = replace(decoder.named(norms=_NORMS), logits=replace(decoder.logits, scale=1 / width))
    top_k = f.count("num_experts_per_tok")
    blocks = InklingMoe(
        routed_shape(f, ("n_routed_experts", "num_local_experts"), top_k, num_layers, layers),
        layers,
        dense,
        expert,
        SinkRouter,
        scoring=Scoring(scaling=f.number("route_scale")),
        shared=Shared(f.count("n_shared_experts")),
        names=BlockNames(bias="gate.bias", experts=None),
    )
    mixers = {i: widened(InklingMixer, each) for i, each in attention.items()}
    return Spec(decoder, blocks, mixers, ConvolvedConnections())


def _widths(f: Fields) -> tuple[int, int]:
    """Of a dense MLP and of an expert, which published checkpoints name otherwise than transformers."""
    if f.get("dense_intermediate_size") is not None:
        return f.count("dense_intermediate_size"), f.count("intermediate_size")
    return f.count("intermediate_size"), f.count("moe_intermediate_size")


class InklingAttention:
    """moeinf.models.layers.protocol.Attention."""

    def __init__(
        self, layers: Layers, a: AttentionConfig, site: AttentionSite, convolutions: ConvolutionsBeside[Array]
    ) -> None:
        weights, prefix = layers.weights, site.prefix
        self.convolutions, self._head_dim, self._math = convolutions, a.head_dim, weights.math
        self._norm = weights.norm(NormConfig(site.front, a.norm_eps))
        self._q, self._k, self._v, self._r, self._o = (weights.linear(f"{prefix}{n}.weight") for n in PROJECTIONS)
        self._q_norm, self._k_norm = (weights.norm(NormConfig(f"{prefix}{n}_norm.weight", a.norm_eps)) for n in "qk")
        self._core = layers.make(HeadsPart(a, site.layer, f"{prefix}rel_logits_proj.proj"))

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        beside = self.convolutions
        beside.begin(spans)
        hidden = self._norm(x)
        q, k, v = self._q(hidden), beside(KEYS, self._k(hidden)), beside(VALUES, self._v(hidden))
        q, k = self._normed(self._q_norm, q), self._normed(self._k_norm, k)
        mixed = mixed_of_spans(self._core, self._math, (q, k, v), spans, relative=self._r(hidden))
        x += beside(ATTENTION, self._o(mixed))

    def _normed(self, norm: Callable[[Array], Array], heads: Array) -> Array:
        return norm(heads.reshape(-1, self._head_dim)).reshape(*heads.shape)


@dataclass(frozen=True, slots=True)
class InklingMixer(RelativeAttention):
    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        shapes, prefix = RelativeAttention.shapes(self, decoder, layer), decoder.attention_site(layer).prefix
        shapes |= {f"{prefix}{name}_norm.weight": (self.config.head_dim,) for name in "qk"}
        for name, width in zip(self.convolutions(decoder, layer)[:ATTENTION], self.widths, strict=False):
            shapes[f"{name}weight"] = (width, 1, self.kernel)
        return shapes

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> InklingAttention:
        weights, widths, number = layers.weights, self.widths, decoder.num_layers + layer
        named = zip(self.convolutions(decoder, layer), widths, strict=True)
        found = [Convolution[Array](weights, name, width, self.kernel) for name, width in named]
        beside = ConvolutionsBeside[Array](weights, found, widths, self.kernel, number)
        return InklingAttention(layers, self.config, decoder.attention_site(layer), beside)


class SinkRouter:
    """Chosen is by sigmoid(w x) + bias; the sigmoids of these and of the shared experts weigh them, and sum to 1 before
    they are scaled. `shares` keeps the weights of the shared ones."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        weights, gate = layers.weights, f"{site.block}gate."
        self._math, self._routing = weights.math, weights.routing
        self._top_k, self._experts = moe.moe.top_k, moe.moe.experts_of(site.moe_layer)
        self._norm, self._gate = weights.norm(site.norm), weights.linear(f"{gate}weight")
        self._bias = weights.vector(f"{gate}bias")
        self._scale = weights.vector(f"{gate}global_scale") * moe.scoring.scaling
        self.shares = weights.math.zeros((1, moe.shared.count))

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math, hidden = self._math, self._norm(x)
        scores = math.sigmoid(self._gate(hidden))
        routed = scores[:, : self._experts]
        ids = math.top_k(routed + self._bias, self._top_k)
        used = math.concatenate([math.take(routed, ids), scores[:, self._experts :]], 1)
        used = used / math.sum(used, -1, True) * self._scale
        self.shares = used[:, self._top_k :]
        return hidden, self._routing(ids, used[:, : self._top_k])


class SharedExperts:
    """The sum of what they give, each weighted by what the router has kept of the same tokens."""

    def __init__(self, weights: Weights, moe: Moe, hidden: int, block: str, router: SinkRouter) -> None:
        self._math, self._router, prefix = weights.math, router, f"{block}shared_experts.shared_"
        inter, count = moe.moe_intermediate_size, moe.shared.count
        self._inner = weights.linears(f"{prefix}w13_weight", [2 * inter] * count)
        self._outer = weights.linears(f"{prefix}w2_weight", [hidden] * count)

    def __call__(self, hidden: Hidden) -> Hidden:
        total = hidden * 0
        for i, (inner, outer) in enumerate(zip(self._inner, self._outer, strict=True)):
            total += outer(_activated(self._math, inner(hidden)) * self._router.shares[:, i : i + 1])
        return total


class ScaledMLP:
    """down(silu(gate(x)) * up(x)), times a number of its own."""

    def __init__(self, weights: Weights, block: str) -> None:
        self._math, self._scale = weights.math, weights.vector(f"{block}global_scale")
        self._inner, self._outer = weights.linear(f"{block}w13_dn.weight"), weights.linear(f"{block}w2_md.weight")

    def __call__(self, hidden: Hidden) -> Hidden:
        return self._outer(_activated(self._math, self._inner(hidden))) * self._scale


def _activated(math: ArrayMath, both: Array) -> Array:
    """silu(gate) * up, which lie in turn."""
    gated: Array = math.silu(both[:, ::2]) * both[:, 1::2]
    return gated


@dataclass(frozen=True, slots=True, kw_only=True)
class InklingMoe(InterleavedMoe):
    beside: Sequence[ConvolutionsBeside[Array]] = ()  # the convolutions of each layer, while a model is being made

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden = Shapes(), decoder.attention.hidden_size
        for i in range(decoder.num_layers):
            prefix = decoder.layer(i) + self.names.block
            if i not in self.moe_layers:
                shapes |= {
                    f"{prefix}w13_dn.weight": (2 * self.intermediate_size, hidden),
                    f"{prefix}w2_md.weight": (hidden, self.intermediate_size),
                    f"{prefix}global_scale": (1,),
                }
                continue
            experts, inter = self.moe.experts_of(self.moe_layers.index(i)), self.moe_intermediate_size
            shapes |= {
                f"{prefix}gate.weight": (experts + self.shared.count, hidden),
                f"{prefix}gate.bias": (experts,),
                f"{prefix}gate.global_scale": (1,),
                f"{prefix}shared_experts.shared_w13_weight": (self.shared.count, 2 * inter, hidden),
                f"{prefix}shared_experts.shared_w2_weight": (self.shared.count, hidden, inter),
            }
        return shapes

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return block_workspace({n: as_matrix(shape) for n, shape in self.shapes(decoder).items() if len(shape) > 1})

    def _behind_block(self, layer: int) -> Callable[[Hidden], Hidden]:
        return partial(self.beside[layer], BLOCK)

    def dense(self, decoder: DecoderConfig, layers: Layers, site: BlockSite) -> Block:
        weights = layers.weights
        return DenseBlock(weights.norm(site.norm), ScaledMLP(weights, site.block), self._behind_block(site.layer))

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        router = SinkRouter(layers, self, site)
        shared = SharedExperts(layers.weights, self, decoder.attention.hidden_size, site.block, router)
        return MoeBlock(site.moe_layer, router, experts, profiler, shared=shared, behind=self._behind_block(site.layer))


@dataclass(frozen=True, slots=True)
class ConvolvedConnections(NormedConnections):
    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, attention = spec.decoder, spec.attention(layers)
        beside = [each.convolutions for each in attention if isinstance(each, InklingAttention)]
        assert isinstance(spec.blocks, InklingMoe)
        blocks = replace(spec.blocks, beside=beside).make(d, layers, experts, profiler)
        norm, states = layers.weights.norm(self.norm(d)), [each.new_state for each in beside]
        stem = NormedStem(layers.embedding(d.embedding), norm, states)
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)


class Family(DecoderFamily):
    name = "inkling_mm_model"
    divisible = False  # states beside those of the layers
    ahead = (r"model\.mtp\..*",)
    ignored = (r"model\.(visual|audio)\..*",)
    renamed = RENAMED
    matrices = tuple(f".{name}.weight" for name in (*PROJECTIONS, "w13_dn", "w2_md"))

    def __init__(self, config: JsonObject) -> None:
        self.take(_parse(text_fields(config)))
        self.vision, self.no_vision = seeing(lambda: inkling_vision(config, self.decoder.attention.hidden_size))
