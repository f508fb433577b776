"""Thinking Machines' Inkling, the language model of it (InklingForCausalLM in transformers).

Attention has no positions: each token adds to its scores by how far back a place lies. Keys, values and what attention
and blocks add go through short convolutions. Shared experts are weighted by the router beside the others. Checkpoints
hold models of images and of sound beside it, which are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, NormConfig, Shapes
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms
from moeinf.models.layers.kv_cache import LayerState, Span
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.moe_block import DenseBlock, MoeBlock
from moeinf.models.layers.moe_plan import GatedExperts, block_workspace, interleaved
from moeinf.models.layers.protocol import Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside
from moeinf.models.layers.recurrent.convolution import Convolution
from moeinf.models.layers.streams.stem import NormedStem
from moeinf.models.layers.weights import as_matrix
from moeinf.types import JsonObject, MoeShape, Profiler, TensorPlan, Workspace

_NORMS = LayerNorms("attn_norm", None, "mlp_norm")
_OTHERS = r"model\.(visual|audio)\..*"
_AHEAD = r"model\.mtp\..*"


@dataclass(frozen=True, slots=True)
class Config:
    common: RelativeDecoder
    moe: MoeShape
    moe_layers: tuple[int, ...]  # of the decoder; the others have a dense MLP
    intermediate_size: int
    moe_intermediate_size: int
    num_shared: int
    route_scale: float

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("shared_expert_sink", True, None)
        f.present("n_shared_experts", "route_scale")
        num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
        dense, expert = _widths(f)
        layers = sparse_layers(
            f, num_layers, first_dense=f.count("dense_mlp_idx", 0, minimum=0), counted="dense_mlp_idx"
        )
        common = RelativeDecoder.parse(f, num_layers, scale=lambda size: 1 / size)
        width = f.number("logits_mup_width_multiplier", f.number("embedding_multiplier", 24.0))
        f.only("embedding_multiplier", width, None)
        return Config(
            replace(
                common,
                decoder=replace(
                    common.decoder.named(norms=_NORMS), logits=replace(common.decoder.logits, scale=1 / width)
                ),
            ),
            routed_shape(
                f, ("n_routed_experts", "num_local_experts"), f.count("num_experts_per_tok"), num_layers, layers
            ),
            layers,
            dense,
            expert,
            f.count("n_shared_experts"),
            f.number("route_scale"),
        )

    @property
    def decoder(self) -> DecoderConfig:
        return self.common.decoder


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
        self._convolutions, self._head_dim, self._math = convolutions, a.head_dim, weights.math
        self._norm = weights.norm(NormConfig(site.front, a.norm_eps))
        self._q, self._k, self._v, self._r, self._o = (weights.linear(f"{prefix}{n}.weight") for n in PROJECTIONS)
        self._q_norm, self._k_norm = (weights.norm(NormConfig(f"{prefix}{n}_norm.weight", a.norm_eps)) for n in "qk")
        self._core = layers.make(HeadsPart(a, site.layer, f"{prefix}rel_logits_proj.proj"))

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_rows(self, x: Hidden, spans: Sequence[Span[Positions]]) -> None:
        beside = self._convolutions
        beside.begin(spans)
        hidden = self._norm(x)
        q, k, v = self._q(hidden), beside(KEYS, self._k(hidden)), beside(VALUES, self._v(hidden))
        q, k = self._normed(self._q_norm, q), self._normed(self._k_norm, k)
        mixed = mixed_of_spans(self._core, self._math, (q, k, v), spans, relative=self._r(hidden))
        x += beside(ATTENTION, self._o(mixed))

    def _normed(self, norm: Callable[[Array], Array], heads: Array) -> Array:
        return norm(heads.reshape(-1, self._head_dim)).reshape(*heads.shape)


class SinkRouter:
    """Chosen is by sigmoid(w x) + bias; the sigmoids of these and of the shared experts weigh them, and sum to 1 before
    they are scaled. `shares` keeps the weights of the shared ones."""

    def __init__(self, weights: Weights, c: Config, block: str, norm: NormConfig, experts: int) -> None:
        self._math, self._routing = weights.math, weights.routing
        self._top_k, self._experts = c.moe.top_k, experts
        self._norm, self._gate = weights.norm(norm), weights.linear(f"{block}gate.weight")
        self._bias = weights.vector(f"{block}gate.bias")
        self._scale = weights.vector(f"{block}gate.global_scale") * c.route_scale
        self.shares = weights.math.zeros((1, c.num_shared))

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

    def __init__(self, weights: Weights, c: Config, block: str, router: SinkRouter) -> None:
        self._math, self._router, prefix = weights.math, router, f"{block}shared_experts.shared_"
        hidden, inter = c.decoder.attention.hidden_size, c.moe_intermediate_size
        self._inner = weights.linears(f"{prefix}w13_weight", [2 * inter] * c.num_shared)
        self._outer = weights.linears(f"{prefix}w2_weight", [hidden] * c.num_shared)

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


def _activated(math: Any, both: Array) -> Array:
    """silu(gate) * up, which lie in turn."""
    gated: Array = math.silu(both[:, ::2]) * both[:, 1::2]
    return gated


class Family(DecoderFamily):
    name = "inkling_mm_model"
    divisible = False  # states beside those of the layers

    def __init__(self, config: JsonObject) -> None:
        c = Config.parse(text_fields(config))
        self._config, self.decoder, self.moe, self.num_shared_experts = c, c.decoder, c.moe, c.num_shared

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        d, weights = self.decoder, layers.weights
        beside = [ConvolutionsBeside[Array](weights, *self._convolutions(weights, i)) for i in range(d.num_layers)]
        attention = [
            InklingAttention(layers, d.attention_of(i), d.attention_site(i, "attn"), beside[i])
            for i in range(d.num_layers)
        ]
        blocks = [self._block(i, weights, experts, profiler, beside[i]) for i in range(d.num_layers)]
        norm = weights.norm(NormConfig(f"{d.prefix}embed_norm.weight", d.attention.norm_eps))
        stem = NormedStem(layers.embedding(d.embedding), norm, [each.new_state for each in beside])
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def _convolutions(self, weights: Weights, layer: int) -> tuple[list[Convolution[Array]], tuple[int, ...], int, int]:
        c, widths = self._config.common, self._config.common.widths_of(layer)
        named = zip(c.convolutions_of(layer), widths, strict=True)
        found = [Convolution[Array](weights, name, width, c.kernel) for name, width in named]
        return found, widths, c.kernel, self.decoder.num_layers + layer

    def _block(
        self, layer: int, weights: Weights, experts: Experts, profiler: Profiler, beside: ConvolutionsBeside[Array]
    ) -> Block:
        c, prefix, norm = self._config, f"{self.decoder.module(layer, 'mlp')}.", self.decoder.block_norm(layer)

        def behind(x: Hidden) -> Hidden:
            return beside(BLOCK, x)

        if layer not in c.moe_layers:
            return DenseBlock(weights.norm(norm), ScaledMLP(weights, prefix), behind)
        moe_layer = c.moe_layers.index(layer)
        router = SinkRouter(weights, c, prefix, norm, c.moe.experts_of(moe_layer))
        shared = SharedExperts(weights, c, prefix, router)
        return MoeBlock(moe_layer, router, experts, profiler, shared=shared, behind=behind)

    def attention_shapes(self) -> Shapes:
        c, d = self._config.common, self.decoder
        shapes = c.attention_shapes()
        for i in range(d.num_layers):
            a, prefix = d.attention_of(i), f"{d.module(i, 'attn')}."
            shapes |= {f"{prefix}{name}_norm.weight": (a.head_dim,) for name in "qk"}
            for name, width in zip(c.convolutions_of(i)[:ATTENTION], c.widths_of(i), strict=False):
                shapes[f"{name}weight"] = (width, 1, c.kernel)
        return shapes

    def block_shapes(self) -> Shapes:
        c, d, shapes = self._config, self.decoder, Shapes()
        hidden = d.attention.hidden_size
        for i in range(d.num_layers):
            prefix = f"{d.module(i, 'mlp')}."
            if i not in c.moe_layers:
                shapes |= {
                    f"{prefix}w13_dn.weight": (2 * c.intermediate_size, hidden),
                    f"{prefix}w2_md.weight": (hidden, c.intermediate_size),
                    f"{prefix}global_scale": (1,),
                }
                continue
            experts, inter = c.moe.experts_of(c.moe_layers.index(i)), c.moe_intermediate_size
            shapes |= {
                f"{prefix}gate.weight": (experts + c.num_shared, hidden),
                f"{prefix}gate.bias": (experts,),
                f"{prefix}gate.global_scale": (1,),
                f"{prefix}shared_experts.shared_w13_weight": (c.num_shared, 2 * inter, hidden),
                f"{prefix}shared_experts.shared_w2_weight": (c.num_shared, hidden, inter),
            }
        return shapes

    @cached_property
    def tensors(self) -> TensorPlan:
        c, d = self._config, self.decoder
        blocks = [f"{d.module(i, 'mlp')}.experts." for i in c.moe_layers]
        plan = self.gated_experts(GatedExperts(blocks, c.moe_intermediate_size, None))
        layout = interleaved(blocks, c.moe, d.attention.hidden_size, c.moe_intermediate_size)
        linear = (*PROJECTIONS, "w13_dn", "w2_md")
        matrices = frozenset(name for name in self.dense if name.removesuffix(".weight").endswith(linear))
        ignored = (*plan.ignored, _OTHERS)
        return replace(plan, experts=(layout,), matrices=matrices, ignored=ignored, ahead=(_AHEAD,))

    @property
    def workspace(self) -> Workspace:
        flat: Shapes = {name: as_matrix(shape) for name, shape in self.block_shapes().items() if len(shape) > 1}
        return self.attention_workspace | block_workspace(flat)

    @property
    def attention_workspace(self) -> Workspace:
        return self._config.common.attention_workspace()

    @property
    def state_bytes(self) -> int:
        return self._config.common.state_bytes
