"""Thinking Machines' Inkling, the language model of it (InklingForCausalLM in transformers).

Attention has no positions: each token adds to its scores by how far back a place lies. Keys, values and what attention
and blocks add go through short convolutions. Shared experts are weighted by the router beside the others. Checkpoints
hold models of images and of sound beside it, which are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from moeinf.errors import CheckpointError
from moeinf.models.family import DecoderFamily
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.attention_config import (
    AttentionConfig,
    AttentionSite,
    NormConfig,
    Shapes,
    Sharpening,
    heads_workspace,
)
from moeinf.models.layers.decoder import Decoder, DecoderConfig, LayerNorms, parse_decoder
from moeinf.models.layers.deepseek_moe import sparse_layers
from moeinf.models.layers.kv_cache import Cache, LayerState
from moeinf.models.layers.moe_block import DenseBlock, MoeBlock
from moeinf.models.layers.moe_plan import GatedExperts, block_workspace, interleaved
from moeinf.models.layers.protocol import Block, Experts, Layers, Positions, Weights
from moeinf.models.layers.recurrent.beside import ConvolutionsBeside, convolutions_bytes
from moeinf.models.layers.streams.stem import NormedStem
from moeinf.models.layers.weights import as_matrix
from moeinf.models.text_part import text_part
from moeinf.types import MoeShape, Profiler, TensorPlan, Workspace

_NORMS = LayerNorms("attn_norm", None, "mlp_norm")
_KEYS, _VALUES, _ATTENTION, _BLOCK = range(4)  # the convolutions of a layer
_PROJECTIONS = ("wq_du", "wk_dv", "wv_dv", "wr_du", "wo_ud")
_OTHERS = r"model\.(visual|audio)\..*"
_AHEAD = r"model\.mtp\..*"


@dataclass(frozen=True, slots=True)
class Config:
    decoder: DecoderConfig
    moe: MoeShape
    moe_layers: tuple[int, ...]  # of the decoder; the others have a dense MLP
    intermediate_size: int
    moe_intermediate_size: int
    num_shared: int
    route_scale: float
    kernel: int  # tokens that convolutions see
    d_rel: int  # numbers of a head's state
    extent: int  # distances that layers without a window know

    @staticmethod
    def parse(f: Fields) -> Config:
        f.only("attention_bias", False, None)
        f.only("tie_word_embeddings", False, None)
        f.only("shared_expert_sink", True, None)
        f.present("num_attention_heads", "num_key_value_heads", "head_dim", "n_shared_experts", "route_scale", "d_rel")
        f.present("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "rel_extent")
        f = f.replaced(max_position_embeddings=f.count_of("max_position_embeddings", "model_max_length"))
        num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
        dense, expert = _widths(f)
        layers = sparse_layers(f, num_layers, first_dense=f.count("dense_mlp_idx", 0, minimum=0))
        return Config(
            _decoder(f, num_layers),
            routed_shape(
                f, ("n_routed_experts", "num_local_experts"), f.count("num_experts_per_tok"), num_layers, layers
            ),
            layers,
            dense,
            expert,
            f.count("n_shared_experts"),
            f.number("route_scale"),
            f.count_of("conv_kernel_size", "sconv_kernel_size"),
            f.count("d_rel"),
            f.count("rel_extent"),
        )

    def extent_of(self, layer: int) -> int:
        return self.decoder.attention_of(layer).window or self.extent

    def widths_of(self, layer: int) -> tuple[int, ...]:
        """The channels of its convolutions, in their order."""
        a = self.decoder.attention_of(layer)
        keys = a.num_kv_heads * a.head_dim
        return keys, keys, a.hidden_size, a.hidden_size

    def convolutions_of(self, layer: int) -> list[str]:
        """What the names of their tensors begin with."""
        names = ("attn.k_sconv", "attn.v_sconv", "attn_sconv", "mlp_sconv")
        return [f"{self.decoder.module(layer, name)}." for name in names]


def _widths(f: Fields) -> tuple[int, int]:
    """Of a dense MLP and of an expert, which published checkpoints name otherwise than transformers."""
    if f.get("dense_intermediate_size") is not None:
        return f.count("dense_intermediate_size"), f.count("intermediate_size")
    return f.count("intermediate_size"), f.count("moe_intermediate_size")


def _decoder(f: Fields, num_layers: int) -> DecoderConfig:
    floor = f.count("log_scaling_n_floor", 0)
    sharpening = Sharpening(f.number("log_scaling_alpha", 0.1), floor, 1, smooth=True) if floor else None
    kinds = f.kinds("layer_types", num_layers, "hybrid_sliding", "hybrid")
    if kinds is None:
        local = f.get("local_layer_ids")
        sliding = [i for i in range(num_layers) if (i + 1) % 6] if local is None else f.layers("local_layer_ids")
    else:
        sliding = [i for i, kind in enumerate(kinds) if kind == "hybrid_sliding"]
    head_dim, swa_dim = f.count("head_dim", minimum=2), f.count("swa_head_dim", minimum=2)
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, rope=None, scale=1 / head_dim, sharpening=sharpening)
    special = replace(
        decoder.attention,
        num_heads=f.count("swa_num_attention_heads"),
        num_kv_heads=f.count("swa_num_key_value_heads"),
        head_dim=swa_dim,
        scale=1 / swa_dim,
        window=f.count_of("sliding_window_size", "sliding_window"),
        sharpening=None,
    )
    width = f.number("logits_mup_width_multiplier", f.number("embedding_multiplier", 24.0))
    f.only("embedding_multiplier", width, None)
    unpadded = f.count("unpadded_vocab_size", decoder.vocab_size)
    return replace(
        decoder,
        special={i: special for i in sliding if i < num_layers},
        logits_scale=1 / width,
        num_logits=min(unpadded, decoder.vocab_size),
        norms=_NORMS,
        embedding_name="embed",
        head_name="unembed.weight",
    )


class InklingAttention:
    """moeinf.models.layers.protocol.Attention."""

    def __init__(
        self, layers: Layers, a: AttentionConfig, site: AttentionSite, convolutions: ConvolutionsBeside[Array]
    ) -> None:
        weights, prefix = layers.weights, site.prefix
        self._convolutions, self._head_dim = convolutions, a.head_dim
        self._norm = weights.norm(NormConfig(site.front, a.norm_eps))
        self._q, self._k, self._v, self._r, self._o = (weights.linear(f"{prefix}{n}.weight") for n in _PROJECTIONS)
        self._q_norm, self._k_norm = (weights.norm(NormConfig(f"{prefix}{n}_norm.weight", a.norm_eps)) for n in "qk")
        self._core = layers.heads_core(a, site.layer, f"{prefix}rel_logits_proj.proj")

    def new_state(self, capacity: int) -> LayerState:
        return self._core.new_state(capacity)

    def add_to(self, x: Hidden, cache: Cache, positions: Positions) -> None:
        beside = self._convolutions
        beside.begin(cache)
        hidden = self._norm(x)
        q, k, v = self._q(hidden), beside(_KEYS, self._k(hidden)), beside(_VALUES, self._v(hidden))
        q, k = self._normed(self._q_norm, q), self._normed(self._k_norm, k)
        mixed = self._core.mixed(q, k, v, cache, positions, relative=self._r(hidden))
        x += beside(_ATTENTION, self._o(mixed))

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

    def __init__(self, config: dict[str, Any]) -> None:
        if not isinstance(config.get("text_config"), dict):
            raise CheckpointError("config.json: text_config is missing")
        text = text_part(config, prefix="model.llm.")
        c = Config.parse(text.fields)
        c = replace(c, decoder=replace(c.decoder, prefix=text.prefix, head_prefix=text.prefix))
        self._config, self.decoder, self.moe, self.num_shared_experts = c, c.decoder, c.moe, c.num_shared

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, d, weights = self._config, self.decoder, layers.weights
        beside = [
            ConvolutionsBeside[Array](weights, c.convolutions_of(i), c.widths_of(i), c.kernel, d.num_layers + i)
            for i in range(d.num_layers)
        ]
        attention = [
            InklingAttention(layers, d.attention_of(i), d.attention_site(i, "attn"), beside[i])
            for i in range(d.num_layers)
        ]
        blocks = [self._block(i, weights, experts, profiler, beside[i]) for i in range(d.num_layers)]
        norm = weights.norm(NormConfig(f"{d.prefix}embed_norm.weight", d.attention.norm_eps))
        stem = NormedStem(layers.embedding(d.embedding), norm, [each.new_state for each in beside])
        return Decoder(d, layers, blocks, experts, profiler, attention, stem)

    def _block(
        self, layer: int, weights: Weights, experts: Experts, profiler: Profiler, beside: ConvolutionsBeside[Array]
    ) -> Block:
        c, prefix, norm = self._config, f"{self.decoder.module(layer, 'mlp')}.", self.decoder.block_norm(layer)

        def behind(x: Hidden) -> Hidden:
            return beside(_BLOCK, x)

        if layer not in c.moe_layers:
            return DenseBlock(weights.norm(norm), ScaledMLP(weights, prefix), behind)
        moe_layer = c.moe_layers.index(layer)
        router = SinkRouter(weights, c, prefix, norm, c.moe.experts_of(moe_layer))
        shared = SharedExperts(weights, c, prefix, router)
        return MoeBlock(moe_layer, router, experts, profiler, shared=shared, behind=behind)

    def attention_shapes(self) -> Shapes:
        c, d = self._config, self.decoder
        shapes: Shapes = {f"{d.prefix}embed_norm.weight": (d.attention.hidden_size,)}
        for i in range(d.num_layers):
            a, prefix = d.attention_of(i), f"{d.module(i, 'attn')}."
            queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
            rows = zip(_PROJECTIONS, (queries, keys, keys, a.num_heads * c.d_rel), strict=False)
            shapes |= {f"{prefix}{name}.weight": (count, a.hidden_size) for name, count in rows}
            shapes |= {f"{prefix}{name}_norm.weight": (a.head_dim,) for name in "qk"}
            shapes[f"{prefix}wo_ud.weight"] = (a.hidden_size, queries)
            shapes[f"{prefix}rel_logits_proj.proj"] = (c.d_rel, c.extent_of(i))
            for name, width in zip(c.convolutions_of(i), c.widths_of(i), strict=True):
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
        linear = (*_PROJECTIONS, "w13_dn", "w2_md")
        matrices = frozenset(name for name in self.dense if name.removesuffix(".weight").endswith(linear))
        ignored = (*plan.ignored, _OTHERS)
        return replace(plan, experts=(layout,), matrices=matrices, ignored=ignored, ahead=(_AHEAD,))

    @property
    def workspace(self) -> Workspace:
        flat: Shapes = {name: as_matrix(shape) for name, shape in self.block_shapes().items() if len(shape) > 1}
        return self.attention_workspace | block_workspace(flat)

    @property
    def attention_workspace(self) -> Workspace:
        c, found = self._config, Workspace()
        for i in range(self.decoder.num_layers):
            a = self.decoder.attention_of(i)
            found |= heads_workspace(a, 2 * a.num_heads * c.d_rel + 4 * sum(c.widths_of(i)))
        return found

    @property
    def state_bytes(self) -> int:
        c = self._config
        return sum(convolutions_bytes(c.kernel, sum(c.widths_of(i))) for i in range(self.decoder.num_layers))
