"""Thinking Machines' Inkling 2, the language model of it (Inkling2ForCausalLM in transformers).

Inkling's attention with queries and keys of bounded length, sinks and gates; in layers that see all tokens the short
convolutions of keys and values have weights that each token adds to. Layers choose what they are given among the states
that blocks of layers have left. Checkpoints hold a model of images beside it, which is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from moeinf.models.families.inkling.relative_decoder import (
    ATTENTION,
    BLOCK,
    KEYS,
    PROJECTIONS,
    VALUES,
    RelativeDecoder,
    mixed_of_spans,
    text_fields,
)
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Array, ArrayMath, Hidden
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention_config import AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring
from moeinf.models.layers.moe_block import MoeBlock
from moeinf.models.layers.moe_plan import GatedExperts, interleaved
from moeinf.models.layers.protocol import Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside, DynamicConvolution
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.routers import SigmoidRouter
from moeinf.models.layers.streams.block_residual import BlockResidual, BlockStates, block_states_workspace, rms_normed
from moeinf.models.layers.streams.hyper import Connection, streamed
from moeinf.models.layers.streams.stem import NormedStem
from moeinf.models.text_part import VISION
from moeinf.types import DType, ExpertForm, JsonObject, ModelInfo, Profiler, TensorPlan, Workspace

_GATE, _SINKS = "gate_attn", "attn_sink_proj"


@dataclass(frozen=True, slots=True)
class Config:
    common: RelativeDecoder
    blocks: Moe
    layers_of_block: int  # whose outputs are summed to a state that later layers may choose
    length: float  # of a head's query or key, at most
    state_length: float  # of a head's state for the bias of its scores
    gate_limit: float  # of experts
    limit: float

    @staticmethod
    def parse(f: Fields) -> Config:
        """Of what Inkling 2 and its kin share."""
        f.only("scoring_func", "sigmoid", None)
        f.only("local_layer_ids", None)
        f.present("num_experts_per_tok", "log_scaling_n_floor", "unpadded_vocab_size")
        num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
        common = RelativeDecoder.parse(f, num_layers, scale=lambda size: size**-0.5)
        scaling = f.number("route_scale", f.number("routed_scaling_factor", 8.0))
        f.only("routed_scaling_factor", scaling, None)
        experts = ("n_routed_experts", "num_local_experts")
        blocks = Moe(
            routed_shape(f, experts, f.count("num_experts_per_tok"), num_layers),
            tuple(range(num_layers)),
            0,
            f.count_of("moe_intermediate_size", "intermediate_size"),
            SigmoidRouter,
            scoring=Scoring(scaling=scaling),
            names=BlockNames(bias="gate.bias"),
        )
        cap = f.number("final_logit_softcapping", 30.0)
        return Config(
            replace(
                common,
                decoder=replace(
                    common.decoder.named(norms=LayerNorms(None, None, "mlp_norm")),
                    logits=replace(common.decoder.logits, cap=cap),
                ),
            ),
            blocks,
            f.count("n_layers_per_attn_res_block", 6),
            f.number("qk_l2_clip_threshold", 512**0.5),
            f.number("rel_l2_clip_threshold", 8.0),
            f.number("mlp_gate_softcap", 4.0),
            f.number("mlp_up_softcap", 25.0),
        )

    @property
    def decoder(self) -> DecoderConfig:
        return self.common.decoder

    def sees_all(self, layer: int) -> bool:
        return self.decoder.attention_of(layer).sight.window is None

    def norms_of(self, layer: int) -> list[str]:
        """Of what queries are made of; in layers that see all tokens also of keys and of values."""
        names = [f"{name}_input_norm" for name in "qkv"] if self.sees_all(layer) else ["attn_norm"]
        return [f"{self.decoder.module(layer, name)}.weight" for name in names]

    def opens_block(self, layer: int) -> bool:
        return layer % self.layers_of_block == 0


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
    """moeinf.models.layers.protocol.Attention: between the states of blocks, of which it chooses what it is given."""

    def __init__(
        self,
        layers: Layers,
        c: Config,
        site: AttentionSite,
        convolutions: ConvolutionsBeside[Array],
        states: BlockStates[Array],
        number: int,
    ) -> None:
        """number: of the state in the cache that keeps keys and values."""
        weights, layer, prefix = layers.weights, site.layer, site.prefix
        a = self._config = c.decoder.attention_of(layer)
        self._math, self._convolutions, self._states = weights.math, convolutions, states
        self._opens, self._dynamic, self._d_rel = c.opens_block(layer), c.sees_all(layer), c.common.d_rel
        self._queries = query(weights, c, f"attn_res.attn_queries.{layer - 1}") if layer else None
        self._norms = [weights.norm(NormConfig(name, a.norm_eps)) for name in c.norms_of(layer)]
        self._q, self._k, self._v, self._r, self._o = (weights.linear(f"{prefix}{n}.weight") for n in PROJECTIONS)
        self._gate, self._sinks = (weights.linear(f"{prefix}{name}.weight") for name in (_GATE, _SINKS))
        self._q_length = HeadLengths(weights.math, c.length, weights.vector(f"{prefix}q_l2_clip.scale"))
        self._k_length = HeadLengths(weights.math, c.length)
        self._r_length = HeadLengths(weights.math, c.state_length, weights.vector(f"{prefix}rel_l2_clip.scale"))
        self._core = layers.make(HeadsPart(a, number, f"{prefix}rel_logits_proj.proj"))

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        self._convolutions.begin(spans)
        added = self._attended(self._normed(self._given(x)), spans)
        if self._opens:
            self._states.add(x)
            x[...] = added
        else:
            x += added

    def _given(self, x: Hidden) -> list[Hidden]:
        """One for queries, keys and values, or one for each of them."""
        return [x] if self._queries is None else self._states.given(x, self._queries)

    def _normed(self, given: Sequence[Hidden]) -> list[Hidden]:
        """What queries, keys and values are made of."""
        norms = self._norms
        if len(given) == len(norms) == 1:
            return [norms[0](given[0])] * 3
        return [norms[min(i, len(norms) - 1)](given[min(i, len(given) - 1)]) for i in range(3)]

    def _attended(self, given: Sequence[Hidden], spans: Sequence[Span[Positions]]) -> Hidden:
        of_queries, of_keys, of_values = given
        beside, a = self._convolutions, self._config
        k = beside(KEYS, self._k(of_keys), *([of_keys] if self._dynamic else []))
        v = beside(VALUES, self._v(of_values), *([of_values] if self._dynamic else []))
        q, k = self._q_length(self._q(of_queries), a.head_dim), self._k_length(k, a.head_dim)
        v = rms_normed(self._math, v.reshape(len(v), -1, a.head_dim), a.norm_eps).reshape(*v.shape)
        relative, sinks = self._r_length(self._r(of_queries), self._d_rel), self._sinks(of_queries)
        mixed = mixed_of_spans(self._core, self._math, (q, k, v), spans, relative=relative, sinks=sinks)
        gated = mixed * self._math.sigmoid(self._gate(of_queries))
        return beside(ATTENTION, self._o(gated))


class BlocksStem(NormedStem):
    """moeinf.models.layers.streams.stem.Stem: at the end a choice among the states that blocks have left."""

    def __init__(
        self,
        embedding: Callable[[Sequence[int]], Array],
        norm: Callable[[Array], Array],
        states: Sequence[Callable[[int], LayerState]],
        blocks: BlockStates[Array],
        query: Array,
    ) -> None:
        super().__init__(embedding, norm, states)
        self._blocks, self._query = blocks, query

    def begin(self, x: Array) -> Hidden:
        self._blocks.left.clear()
        return super().begin(x)

    def end(self, x: Hidden, pick: Callable[[Hidden], Hidden]) -> Hidden:
        return self._blocks.given(pick(x), self._query, [pick(each) for each in self._blocks.left])[0]


def query(weights: Weights, c: Config, name: str) -> Array:
    """[count, hidden]."""
    return weights.vector(c.decoder.prefix + name).reshape(-1, c.decoder.attention.hidden_size)


class Family(DecoderFamily):
    name = "inkling2"
    divisible = False  # states beside those of the layers
    config_of = staticmethod(Config.parse)

    def __init__(self, config: JsonObject) -> None:
        c = self._config = self.config_of(text_fields(config))
        self.decoder, self.moe = c.decoder, c.blocks.moe

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, d, weights = self._config, self.decoder, layers.weights
        states = BlockStates[Array](weights.math)
        beside = [self.beside(weights, i, d.num_layers + i) for i in range(d.num_layers)]
        attention = [
            Inkling2Attention(layers, c, d.attention_site(i, "attn"), beside[i], states, i) for i in range(d.num_layers)
        ]
        blocks = [
            self.block(i, layers, experts, profiler, beside[i], self.residual(weights, i, states))
            for i in range(d.num_layers)
        ]
        norm = weights.norm(NormConfig(f"{d.prefix}embed_norm.weight", d.attention.norm_eps))
        further = [each.new_state for each in beside]
        stem = BlocksStem(
            layers.embedding(d.embedding), norm, further, states, query(weights, c, "attn_res.output_query")
        )
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def beside(self, weights: Weights, layer: int, number: int) -> ConvolutionsBeside[Array]:
        """number: of the state in the cache that convolutions keep."""
        c = self._config.common
        a, widths, names = self.decoder.attention_of(layer), c.widths_of(layer), c.convolutions_of(layer)
        plain, dynamic = (c.kernel + 1) ** -0.5, (2 * c.kernel + 1) ** -0.5
        found = list[Callable[..., Array]]()
        for i, (name, width) in enumerate(zip(names, widths, strict=True)):
            if i < ATTENTION and self._config.sees_all(layer):
                found.append(DynamicConvolution[Array](weights, name, a.num_kv_heads, c.kernel))
            else:
                found.append(Convolution[Array](weights, name, width, c.kernel))
        scales = [dynamic if isinstance(each, DynamicConvolution) else plain for each in found]
        return ConvolutionsBeside(weights, found, widths, c.kernel, number, scales)

    def block(
        self,
        layer: int,
        layers: Layers,
        experts: Experts,
        profiler: Profiler,
        beside: ConvolutionsBeside[Array],
        residual: Connection,
    ) -> Block:
        c, prefix = self._config, f"{self.decoder.module(layer, 'mlp')}."

        def behind(x: Hidden) -> Hidden:
            return beside(BLOCK, x)

        router = c.blocks.router(layers, c.blocks, BlockSite(layer, layer, prefix, self.decoder.block_norm(layer)))
        block = MoeBlock(layer, router, experts, profiler, behind=behind, replaces=True)
        return streamed(residual, block)

    def residual(self, weights: Weights, layer: int, states: BlockStates[Array]) -> BlockResidual:
        return BlockResidual(states, query(weights, self._config, f"attn_res.mlp_queries.{layer}"))

    def attention_shapes(self) -> Shapes:
        c, d = self._config, self.decoder
        hidden, kernel, shapes = d.attention.hidden_size, c.common.kernel, c.common.attention_shapes()
        chosen = f"{d.prefix}attn_res."
        shapes[f"{chosen}output_query"] = (hidden,)
        for i in range(d.num_layers):
            a, prefix = d.attention_of(i), f"{d.module(i, 'attn')}."
            shapes |= dict.fromkeys(c.norms_of(i), (hidden,))
            shapes[f"{chosen}mlp_queries.{i}"] = (hidden,)
            if i > 0:
                shapes[f"{chosen}attn_queries.{i - 1}"] = (3, hidden) if c.sees_all(i) else (hidden,)
            shapes |= {
                f"{prefix}{_GATE}.weight": (a.num_heads * a.head_dim, hidden),
                f"{prefix}{_SINKS}.weight": (a.num_heads, hidden),
                f"{prefix}q_l2_clip.scale": (a.num_heads, a.head_dim),
                f"{prefix}rel_l2_clip.scale": (a.num_heads, c.common.d_rel),
            }
            for name, width in zip(c.common.convolutions_of(i)[:ATTENTION], c.common.widths_of(i), strict=False):
                if c.sees_all(i):
                    shapes |= {
                        f"{name}static_w": (kernel, width),
                        f"{name}weight_proj": (a.num_kv_heads * kernel, hidden),
                    }
                else:
                    shapes[f"{name}weight"] = (width, 1, kernel)
        return shapes

    def block_shapes(self) -> Shapes:
        return self._config.blocks.shapes(self.decoder)

    @cached_property
    def tensors(self) -> TensorPlan:
        c, d = self._config, self.decoder
        blocks = [f"{d.module(i, 'mlp')}.experts." for i in range(d.num_layers)]
        plan = self.gated_experts(GatedExperts(blocks, c.blocks.moe_intermediate_size, None))
        layout = interleaved(blocks, c.blocks.moe, d.attention.hidden_size, c.blocks.moe_intermediate_size)
        linear = tuple(f"{name}.weight" for name in (*PROJECTIONS, _GATE))
        matrices = frozenset(name for name in self.dense if name.endswith(linear))
        form = ExpertForm("softcapped", limit=c.limit, gate_limit=c.gate_limit)
        return replace(plan, experts=(layout,), matrices=matrices, ignored=(*plan.ignored, VISION), form=form)

    @property
    def attention_workspace(self) -> Workspace:
        c, d = self._config, self.decoder
        blocks = -(-d.num_layers // c.layers_of_block)
        states = block_states_workspace(d.attention.hidden_size, blocks, 3)
        found = c.common.attention_workspace() | states
        return replace(found, token=found.token + states.token)

    @property
    def state_bytes(self) -> int:
        return self._config.common.state_bytes

    def info(self, dtype: DType) -> ModelInfo:
        """The further rows of the head, which checkpoints are filled up with, are no parameters."""
        d, found = self.decoder, super().info(dtype)
        filling = (d.vocab_size - (d.logits.count or d.vocab_size)) * d.attention.hidden_size
        return replace(found, num_params=found.num_params - filling, active_params=found.active_params - filling)
