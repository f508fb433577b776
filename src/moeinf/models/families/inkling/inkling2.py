"""Thinking Machines' Inkling 2, the language model of it (Inkling2ForCausalLM in transformers).

Inkling's attention with queries and keys of bounded length, sinks and gates; in layers that see all tokens the short
convolutions of keys and values have weights that each token adds to. Layers choose what they are given among the states
that blocks of layers have left. Checkpoints hold a model of images beside it, which is left out.
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
from moeinf.models.layers.attention_config import NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.moe import BlockNames, BlockSite, Scoring
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside, DynamicConvolution
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.models.layers.streams.block_residual import (
    BlockResidual,
    BlocksStem,
    BlockStates,
    block_states_workspace,
    rms_normed,
)
from moeinf.models.layers.streams.hyper import Connection, streamed
from moeinf.models.text_part import VISION
from moeinf.models.widened import widened
from moeinf.types import ExpertForm, JsonObject, Profiler, Workspace

_GATE, _SINKS = "gate_attn", "attn_sink_proj"
NewState = Callable[[int], LayerState]  # of a capacity
OfStem = tuple[
    Callable[[Sequence[int]], Array], Callable[[Array], Array], Sequence[NewState], BlockStates[Array], Array
]  # what BlocksStem is made of


def parse(f: Fields) -> Spec:
    f.only("scoring_func", "sigmoid", None)
    f.only("local_layer_ids", None)
    f.present("num_experts_per_tok", "log_scaling_n_floor", "unpadded_vocab_size")
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    decoder, attention = parse_relative(f, num_layers, scale=lambda size: size**-0.5)
    scaling = f.number("route_scale", f.number("routed_scaling_factor", 8.0))
    f.only("routed_scaling_factor", scaling, None)
    names = ("n_routed_experts", "num_local_experts")
    moe = routed_shape(f, names, f.count("num_experts_per_tok"), num_layers)
    expert_size = f.count_of("moe_intermediate_size", "intermediate_size")
    cap = f.number("final_logit_softcapping", 30.0)
    layers_of_block = f.count("n_layers_per_attn_res_block", 6)
    lengths = f.number("qk_l2_clip_threshold", 512**0.5), f.number("rel_l2_clip_threshold", 8.0)
    gate_limit, limit = f.number("mlp_gate_softcap", 4.0), f.number("mlp_up_softcap", 25.0)
    blocks = ChoosingMoe(
        moe,
        tuple(range(num_layers)),
        0,
        expert_size,
        SigmoidRouter,
        scoring=Scoring(scaling=scaling),
        names=BlockNames(bias="gate.bias", experts=None),
        expert_form=ExpertForm("softcapped", limit=limit, gate_limit=gate_limit),
    )
    decoder = decoder.named(norms=LayerNorms(None, None, "mlp_norm"))
    decoder = replace(decoder, logits=replace(decoder.logits, cap=cap))
    # the further rows of the head, which checkpoints are filled up with
    filling = (decoder.vocab_size - (decoder.logits.count or decoder.vocab_size)) * decoder.attention.hidden_size
    mixers = {
        i: widened(ChoosingAttention, each, lengths=lengths, opens_block=i % layers_of_block == 0)
        for i, each in attention.items()
    }
    return Spec(decoder, blocks, mixers, BlockConnections(layers_of_block), filling=filling)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosingAttention(RelativeAttention):
    """Between the states of blocks, of which it chooses what it is given."""

    lengths: tuple[float, float]  # at most, of a head's query or key, and of its state for the bias of scores
    opens_block: bool  # of layers, whose outputs are summed to a state that later layers may choose

    @property
    def sees_all(self) -> bool:
        return self.config.sight.window is None

    def norms(self, decoder: DecoderConfig, layer: int) -> list[str]:
        """Of what queries are made of; in layers that see all tokens also of keys and of values."""
        names = [f"{name}_input_norm" for name in "qkv"] if self.sees_all else ["attn_norm"]
        return [f"{decoder.module(layer, name)}.weight" for name in names]

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        a, prefix, kernel = self.config, decoder.attention_site(layer).prefix, self.kernel
        hidden, chosen = a.hidden_size, f"{decoder.prefix}attn_res."
        shapes = RelativeAttention.shapes(self, decoder, layer)
        shapes |= dict.fromkeys(self.norms(decoder, layer), (hidden,))
        shapes[f"{chosen}mlp_queries.{layer}"] = (hidden,)
        if layer > 0:
            shapes[f"{chosen}attn_queries.{layer - 1}"] = (3, hidden) if self.sees_all else (hidden,)
        shapes |= {
            f"{prefix}{_GATE}.weight": (a.num_heads * a.head_dim, hidden),
            f"{prefix}{_SINKS}.weight": (a.num_heads, hidden),
            f"{prefix}q_l2_clip.scale": (a.num_heads, a.head_dim),
            f"{prefix}rel_l2_clip.scale": (a.num_heads, self.d_rel),
        }
        for name, width in zip(self.convolutions(decoder, layer)[:ATTENTION], self.widths, strict=False):
            if self.sees_all:
                shapes[f"{name}static_w"] = (kernel, width)
                shapes[f"{name}weight_proj"] = (a.num_kv_heads * kernel, hidden)
            else:
                shapes[f"{name}weight"] = (width, 1, kernel)
        return shapes

    def make(self, layers: Layers, decoder: DecoderConfig, layer: int, before: Sequence[Attention]) -> Attention:
        """The states that convolutions keep come behind those of all layers."""
        first = before[0] if before else None
        states = first.states if isinstance(first, Inkling2Attention) else BlockStates[Array](layers.weights.math)
        beside = self.beside(layers.weights, decoder, layer, decoder.num_layers + layer)
        return Inkling2Attention(layers, decoder, self, layer, beside, states, layer)

    def beside(self, weights: Weights, decoder: DecoderConfig, layer: int, number: int) -> ConvolutionsBeside[Array]:
        """number: of the state in the cache that convolutions keep."""
        kernel, found = self.kernel, list[Callable[..., Array]]()
        plain, dynamic = (kernel + 1) ** -0.5, (2 * kernel + 1) ** -0.5
        for i, (name, width) in enumerate(zip(self.convolutions(decoder, layer), self.widths, strict=True)):
            if i < ATTENTION and self.sees_all:
                found.append(DynamicConvolution[Array](weights, name, self.config.num_kv_heads, kernel))
            else:
                found.append(Convolution[Array](weights, name, width, kernel))
        scales = [dynamic if isinstance(each, DynamicConvolution) else plain for each in found]
        return ConvolutionsBeside(weights, found, self.widths, kernel, number, scales)


class HeadLengths:
    """Heads are multiplied by weights, where they have any, and shortened to a length where they are longer."""

    def __init__(self, math: ArrayMath, most: float, scale: Array | None = None) -> None:
        """scale [heads * head_dim]."""
        self._math, self._most, self._scale = math, most, scale

    def __call__(self, heads: Array, head_dim: int) -> Array:
        """heads [tokens, heads * head_dim] -> the same."""
        scaled = (heads if self._scale is None else heads * self._scale).reshape(len(heads), -1, head_dim)
        length = self._math.sum(scaled * scaled, -1, True) ** 0.5
        factor = self._math.clip((length + 1e-6) ** -1.0 * self._most, 0.0, 1.0)
        return (scaled * factor).reshape(*heads.shape)


class Inkling2Attention:
    """moeinf.models.layers.protocol.Attention."""

    def __init__(
        self,
        layers: Layers,
        decoder: DecoderConfig,
        c: ChoosingAttention,
        layer: int,
        convolutions: ConvolutionsBeside[Array],
        states: BlockStates[Array],
        number: int,
    ) -> None:
        """number: of the state in the cache that keeps keys and values."""
        weights, prefix, a = layers.weights, decoder.attention_site(layer).prefix, c.config
        self._config, self._math, self.convolutions, self.states = a, weights.math, convolutions, states
        self._opens, self._dynamic, self._d_rel = c.opens_block, c.sees_all, c.d_rel
        self._queries = query(weights, decoder, f"attn_res.attn_queries.{layer - 1}") if layer else None
        self._norms = [weights.norm(NormConfig(name, a.norm_eps)) for name in c.norms(decoder, layer)]
        self._q, self._k, self._v, self._r, self._o = (weights.linear(f"{prefix}{n}.weight") for n in PROJECTIONS)
        self._gate, self._sinks = (weights.linear(f"{prefix}{name}.weight") for name in (_GATE, _SINKS))
        length, state_length = c.lengths
        self._q_length = HeadLengths(weights.math, length, weights.vector(f"{prefix}q_l2_clip.scale"))
        self._k_length = HeadLengths(weights.math, length)
        self._r_length = HeadLengths(weights.math, state_length, weights.vector(f"{prefix}rel_l2_clip.scale"))
        self._core = layers.make(HeadsPart(a, number, f"{prefix}rel_logits_proj.proj"))

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        self.convolutions.begin(spans)
        added = self._attended(self._normed(self._given(x)), spans)
        if self._opens:
            self.states.add(x)
            x[...] = added
        else:
            x += added

    def _given(self, x: Hidden) -> list[Hidden]:
        """One for queries, keys and values, or one for each of them."""
        return [x] if self._queries is None else self.states.given(x, self._queries)

    def _normed(self, given: Sequence[Hidden]) -> list[Hidden]:
        """What queries, keys and values are made of."""
        norms = self._norms
        if len(given) == len(norms) == 1:
            return [norms[0](given[0])] * 3
        return [norms[min(i, len(norms) - 1)](given[min(i, len(given) - 1)]) for i in range(3)]

    def _attended(self, given: Sequence[Hidden], spans: Sequence[Span[Positions]]) -> Hidden:
        of_queries, of_keys, of_values = given
        beside, a = self.convolutions, self._config
        k = beside(KEYS, self._k(of_keys), *([of_keys] if self._dynamic else []))
        v = beside(VALUES, self._v(of_values), *([of_values] if self._dynamic else []))
        q, k = self._q_length(self._q(of_queries), a.head_dim), self._k_length(k, a.head_dim)
        v = rms_normed(self._math, v.reshape(len(v), -1, a.head_dim), a.norm_eps).reshape(*v.shape)
        relative, sinks = self._r_length(self._r(of_queries), self._d_rel), self._sinks(of_queries)
        mixed = mixed_of_spans(self._core, self._math, (q, k, v), spans, relative=relative, sinks=sinks)
        gated = mixed * self._math.sigmoid(self._gate(of_queries))
        return beside(ATTENTION, self._o(gated))


def query(weights: Weights, decoder: DecoderConfig, name: str) -> Array:
    """[count, hidden]."""
    return weights.vector(decoder.prefix + name).reshape(-1, decoder.attention.hidden_size)


@dataclass(frozen=True, slots=True)
class ChoosingMoe(InterleavedMoe):
    def between(
        self,
        decoder: DecoderConfig,
        layers: Layers,
        experts: Experts,
        profiler: Profiler,
        layer: int,
        beside: ConvolutionsBeside[Array],
        connection: Connection,
    ) -> Block:
        """The block of a layer between the states of blocks; its output goes through a convolution."""
        prefix, norm = decoder.layer(layer) + self.names.block, decoder.block_norm(layer)
        router, behind = self.router(layers, self, BlockSite(layer, layer, prefix, norm)), partial(beside, BLOCK)
        return streamed(connection, MoeBlock(layer, router, experts, profiler, behind=behind, replaces=True))


@dataclass(frozen=True, slots=True)
class BlockConnections(NormedConnections):
    layers_of_block: int

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        output_query = f"{decoder.prefix}attn_res.output_query"
        return NormedConnections.shapes(self, decoder) | {output_query: (decoder.attention.hidden_size,)}

    def workspace(self, decoder: DecoderConfig, mixers: Workspace) -> Workspace:
        blocks = -(-decoder.num_layers // self.layers_of_block)
        states = block_states_workspace(decoder.attention.hidden_size, blocks, 3)
        found = mixers | states
        return replace(found, token=found.token + states.token)

    def connect(self, spec: Spec, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, weights, made = spec.decoder, layers.weights, spec.attention(layers)
        attention = [each for each in made if isinstance(each, Inkling2Attention)]
        states, beside = attention[0].states, [each.convolutions for each in attention]
        assert isinstance(spec.blocks, ChoosingMoe)
        blocks = [
            spec.blocks.between(d, layers, experts, profiler, i, beside[i], self.residual(weights, d, i, states))
            for i in range(d.num_layers)
        ]
        stem = BlocksStem(*self.stem(layers, d, beside, states))
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def residual(
        self, weights: Weights, decoder: DecoderConfig, layer: int, states: BlockStates[Array]
    ) -> BlockResidual:
        return BlockResidual(states, query(weights, decoder, f"attn_res.mlp_queries.{layer}"))

    def stem(
        self,
        layers: Layers,
        decoder: DecoderConfig,
        beside: Sequence[ConvolutionsBeside[Array]],
        states: BlockStates[Array],
    ) -> OfStem:
        norm, last = layers.weights.norm(self.norm(decoder)), query(layers.weights, decoder, "attn_res.output_query")
        return layers.embedding(decoder.embedding), norm, [each.new_state for each in beside], states, last


class Family(DecoderFamily):
    name = "inkling2"
    divisible = False  # states beside those of the layers
    parse = staticmethod(parse)
    ignored = (VISION,)
    matrices = tuple(f".{name}.weight" for name in (*PROJECTIONS, _GATE))
    no_matrices = (f".{_SINKS}.weight",)

    def __init__(self, config: JsonObject) -> None:
        self.take(self.parse(text_fields(config)))
