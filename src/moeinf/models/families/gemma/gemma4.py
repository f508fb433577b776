"""Gemma 4, mostly with experts and a dense MLP beside them, two kinds of attention (Gemma4TextModel).

Most layers have a window and plain positions; every sixth sees all tokens, with larger heads, of which a quarter of the
pairs is rotated, and values that are its keys before they are rotated. A tower sees pictures, whose tokens see each
other in layers with a window; checkpoints also hold a model of sound, which is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.families.llama.dense_mlps import PLAIN, DenseMlps, dense_mlps
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Array, Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, NormConfig, Scores, Shapes, Sight, mlp_shapes
from moeinf.models.layers.decoder import DecoderConfig, LayerNorms, Logits, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring
from moeinf.models.layers.moe_block import MoeBlock, SharedExpert
from moeinf.models.layers.protocol import Block, Experts, Layers, Weights
from moeinf.models.layers.rope import Rope, of_kind, own_shares, partial_rotary, rope_of
from moeinf.models.layers.vision.pooling_tower import PoolingConfig, PoolingTower
from moeinf.models.layers.vision.vision import Vision, Whole, seeing
from moeinf.models.text_part import text_part
from moeinf.models.widened import widened
from moeinf.types import Activation, JsonObject, Profiler

NORMS = LayerNorms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm")
_MORE_NORMS = (
    "post_feedforward_layernorm",  # of what MLP and experts add together
    "post_feedforward_layernorm_1",  # of what the MLP adds
    "pre_feedforward_layernorm_2",  # of what experts are given
    "post_feedforward_layernorm_2",  # of what they add
)
_OTHER_MODELS = r"model\.(vision_tower|embed_vision|audio_tower|embed_audio)\..*"
_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Of the layers of a kind; 0 where nothing is said."""

    head_dim: int
    num_kv_heads: int

    def __or__(self, other: HeadSizes) -> HeadSizes:
        """Those of the other, where it says any."""
        return HeadSizes(other.head_dim or self.head_dim, other.num_kv_heads or self.num_kv_heads)


def _parse(f: Fields, prefix: str) -> Spec:
    f.only("use_bidirectional_attention", "vision", None)  # which is of images
    f.only("num_kv_shared_layers", 0, None)
    f.only("hidden_size_per_layer_input", 0)  # smaller Gemmas alone have embeddings of each layer
    f = f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True))
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    f.within("rope_parameters").refuse_others(*_ROPES)
    own_shares(f, *_ROPES)
    own, others = f.replaced(per_layer_config=None), _layers_of_their_own(f)
    sizes = HeadSizes(f.count("head_dim", 256, minimum=2), f.count("num_key_value_heads", 4))
    decoder = parse_decoder(
        own,
        norm_eps=1e-6,
        theta=1e4,
        rope=_rope(own, "sliding_attention", sizes.head_dim),
        scores=Scores(1.0),
        head_norms=HeadNorms(of_values=True),
        head_dim=sizes.head_dim,
        num_kv_heads=sizes.num_kv_heads,
    )
    kinds, window = _kinds(f, decoder.num_layers), f.count("sliding_window", 512)
    slides = [kind == "sliding_attention" for kind in kinds]
    together = f.get("use_bidirectional_attention") == "vision"
    global_sizes = _sizes_of_kind(f, others, kinds, "full_attention", sizes)
    if _sizes_of_kind(f, others, kinds, "sliding_attention", sizes) != sizes:
        raise UnsupportedModelError(f"{f.where}: per_layer_config of layers with a window is not supported")
    whole = replace(
        decoder.attention,
        head_dim=global_sizes.head_dim,
        num_kv_heads=global_sizes.num_kv_heads,
        rope=_rope(own, "full_attention", global_sizes.head_dim),
        projections=replace(decoder.attention.projections, values_of_keys=f.flag("attention_k_eq_v", False)),
    )
    decoder = replace(
        decoder.named(prefix=prefix, norms=NORMS),
        attention=replace(decoder.attention, sight=Sight(window, sees="picture" if together else "past")),
        activation=activation_of(f, "hidden_activation", "gelu_tanh"),
        special={i: whole for i, each in enumerate(slides) if not each},
        embedding_scale=decoder.attention.hidden_size**0.5,
        logits=Logits(cap=None if f.get("final_logit_softcapping") is None else f.number("final_logit_softcapping")),
    )
    if not f.flag("enable_moe_block", False):
        f = f.replaced(num_experts=None)
        return Spec(decoder, widened(ScaledMlps, dense_mlps(f, decoder, replace(PLAIN, behind=_MORE_NORMS[0]))))
    moe = routed_shape(f, ("num_experts",), f.count("top_k_experts"), decoder.num_layers)
    blocks = GemmaMoe(
        moe,
        tuple(range(decoder.num_layers)),
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        Router,
        scoring=Scoring(corrected=False),
        names=BlockNames("", gate="router.proj.weight"),
        hidden_size=decoder.attention.hidden_size,
        expert_factors=f.flag("expert_factors", True),  # moeinf's own, of a GGUF file
    )
    return Spec(decoder, blocks)


def _kinds(f: Fields, num_layers: int) -> list[str]:
    """The last layer sees all tokens, whatever layer_types says of it."""
    kinds = f.kinds("layer_types", num_layers, *_ROPES)
    if kinds is None:
        kinds = tuple("sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(num_layers))
    return [*kinds[:-1], "full_attention"]


def _layers_of_their_own(f: Fields) -> dict[int, HeadSizes] | None:
    """per_layer_config, in which transformers saves sizes of layers; None where global_head_dim and its like say it."""
    if f.get("per_layer_config") is None:
        return None
    found, r = dict[int, HeadSizes](), f.within("per_layer_config")
    for name in f.get("per_layer_config"):
        if not name.isdecimal():
            raise CheckpointError(f"{r.where}: {name!r:.100} is no number of a layer")
        layer = r.within(name)
        layer.refuse_others("head_dim", "num_key_value_heads")
        found[int(name)] = HeadSizes(layer.count("head_dim", 0), layer.count("num_key_value_heads", 0))
    return found


def _sizes_of_kind(
    f: Fields, others: dict[int, HeadSizes] | None, kinds: list[str], kind: str, sizes: HeadSizes
) -> HeadSizes:
    """Of the layers of a kind, which are all alike."""
    if others is None:
        if kind == "sliding_attention":
            return sizes
        heads = f.count("num_global_key_value_heads", 0) if f.flag("attention_k_eq_v", False) else 0
        return sizes | HeadSizes(f.count("global_head_dim", 512, minimum=2), heads)
    found = {sizes | others.get(i, HeadSizes(0, 0)) for i, each in enumerate(kinds) if each == kind}
    if len(found) > 1:
        raise UnsupportedModelError(f"{f.where}: per_layer_config with unlike layers of one kind is not supported")
    return found.pop() if found else sizes


def _rope(f: Fields, kind: str, head_dim: int) -> Rope:
    own = of_kind(f, kind)
    return rope_of(own, partial_rotary(own, head_dim), 1e4, f.count("max_position_embeddings"))


def _vision(config: JsonObject, hidden_size: int) -> Vision | None:
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    tower = PoolingConfig.parse(f.within("vision_config"), hidden_size)
    begin, end = f.count("boi_token_id", 255999), f.count("eoi_token_id", 258882)
    return Vision(
        PoolingTower(tower),
        tower.form,
        f.count("image_token_id", 258880),
        tower.pool**2,
        layout=Whole((begin,), (end,)),
    )


class Router:
    """Softmax over all experts, the best k of which are made to sum to 1; then each expert's factor."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        """Its norm has the weight router.scale; experts are given another one."""
        assert isinstance(moe, GemmaMoe) and site.norm is not None
        weights, layer, eps = layers.weights, site.block, site.norm.eps
        self._math, self._routing, self._top_k = weights.math, weights.routing, moe.moe.top_k
        self._norm = weights.norm(NormConfig(f"{layer}router.scale", eps))
        self._gate, self._scale = weights.linear(layer + moe.names.gate), moe.hidden_size**-0.5
        self._factors = weights.vector(f"{layer}router.per_expert_scale") if moe.expert_factors else None
        self._given = weights.norm(NormConfig(f"{layer}pre_feedforward_layernorm_2.weight", eps))

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math = self._math
        shares = math.softmax(self._gate(self._norm(x)) * self._scale)
        ids = math.top_k(shares, self._top_k)
        total = math.sum(math.take(shares, ids), -1, True)
        weighted = shares if self._factors is None else shares * self._factors
        return self._given(x), self._routing(ids, math.take(weighted, ids) / total)


class DenseMLP:
    """norm(down(f(gate(x)) * up(x))) of norm(x), f being mostly gelu."""

    def __init__(
        self, weights: Weights, layer: str, norm: NormConfig, behind: NormConfig, activation: Activation
    ) -> None:
        self._norm, self._behind = weights.norm(norm), weights.norm(behind)
        self._mlp = SharedExpert(weights, f"{layer}mlp.", activation=activation)

    def __call__(self, x: Hidden) -> Hidden:
        return self._behind(self._mlp(self._norm(x)))


class ScaledBlock(MoeBlock):
    """What leaves the layer is multiplied by a number."""

    scale: Array  # [1]

    def add_to(self, x: Hidden) -> None:
        super().add_to(x)
        x *= self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaMoe(Moe):
    """Experts beside a dense MLP in every layer."""

    fused_first: ClassVar[bool] = True
    hidden_size: int
    expert_factors: bool  # of each expert, in a tensor of their own; in a GGUF file they lie with its weights

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes, hidden = Shapes(), self.hidden_size
        for i in self.moe_layers:
            layer, experts = decoder.layer(i), self.moe.experts_of(i)
            shapes |= mlp_shapes(hidden, self.intermediate_size, f"{layer}mlp.")
            shapes |= {f"{layer}{name}.weight": (hidden,) for name in _MORE_NORMS}
            shapes |= {layer + self.names.gate: (experts, hidden), f"{layer}router.scale": (hidden,)}
            shapes[f"{layer}layer_scalar"] = (1,)
            if self.expert_factors:
                shapes[f"{layer}router.per_expert_scale"] = (experts,)
        return shapes

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        weights, layer = layers.weights, site.block
        assert site.norm is not None
        behind, behind_mlp, _, behind_experts = (
            NormConfig(f"{layer}{name}.weight", site.norm.eps) for name in _MORE_NORMS
        )
        block = ScaledBlock(
            site.moe_layer,
            self.router(layers, self, site),
            experts,
            profiler,
            beside=DenseMLP(weights, layer, site.norm, behind_mlp, decoder.activation),
            behind_experts=weights.norm(behind_experts),
            behind=weights.norm(behind),
        )
        block.scale = weights.vector(f"{layer}layer_scalar")
        return block


@dataclass(frozen=True, slots=True)
class ScaledMlps(DenseMlps):
    """Of a Gemma 4 without experts."""

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        return DenseMlps.shapes(self, decoder) | {f"{decoder.layer(i)}layer_scalar": (1,) for i in self.moe_layers}

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        weights, router = layers.weights, self.router(layers, self, site)
        behind = self._norm_behind(decoder, weights, site.layer)
        block = ScaledBlock(site.moe_layer, router, experts, profiler, behind=behind)
        block.scale = weights.vector(f"{decoder.layer(site.layer)}layer_scalar")
        return block


class Family(DecoderFamily):
    name = "gemma4"
    ignored = (_OTHER_MODELS,)

    def __init__(self, config: JsonObject) -> None:
        text = text_part({"tie_word_embeddings": True} | config)
        self.take(_parse(text.fields, text.prefix))
        self.vision, self.no_vision = seeing(lambda: _vision(config, self.decoder.attention.hidden_size))
