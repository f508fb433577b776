"""Cohere's Command and North with experts: attention and experts side by side on one norm (Cohere2MoeForCausalLM).

Every fourth layer sees all tokens and has no positions; the others have a window. Command A+ also sees pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.decoder import DecoderConfig, LayerNorms, Logits, parse_decoder
from moeinf.models.layers.moe import BlockSite, Moe, Scoring, Shared
from moeinf.models.layers.moe_block import Beside, Routed, SharedExpert
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.models.layers.rope import rope_of, whole_heads
from moeinf.models.layers.vision.of_families.cohere_vision import RENAMED, cohere_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import TextIn
from moeinf.types import JsonObject, Profiler

_NORMS = LayerNorms(block=None)


def _parse(f: Fields) -> Spec:
    f.present("head_dim", "num_experts", "num_experts_per_tok", "sliding_window")
    f.only("shared_expert_combination_strategy", "average", "sum", None)
    f.only("expert_selection_fn", "softmax", "sigmoid", None)
    f.only("rope_scaling", None)
    whole_heads(f)
    num_layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    first = f.count("first_k_dense_replace", 0, minimum=0)
    kinds = f.kinds("layer_types", num_layers, "sliding_attention", "full_attention") or tuple(
        "sliding_attention" if slides else "full_attention" for slides in _slides(f, num_layers, first)
    )
    mlps = f.kinds("mlp_layer_types", num_layers, "dense", "sparse") or tuple(
        "dense" if i < first else "sparse" for i in range(num_layers)
    )
    rms = f.get("rms_norm_eps") is not None
    head_dim = f.count("head_dim", minimum=2)
    rope = rope_of(f, head_dim, 1e4, f.count("max_position_embeddings"))
    decoder = parse_decoder(
        f.replaced(tie_word_embeddings=f.flag("tie_word_embeddings", True)),
        norm_eps=f.number("layer_norm_eps", 1e-5),
        theta=1e4,
        rope=replace(rope, interleaved=True),
        norm="rms" if rms else "centred",
    )
    turned = f.count("prefix_dense_sliding_window_pattern", 1) == 1  # dense layers, whatever they see
    sparse, window = tuple(i for i in range(num_layers) if mlps[i] == "sparse"), f.count("sliding_window")
    whole = {i for i in range(num_layers) if kinds[i] == "full_attention" and not (turned and i not in sparse)}
    decoder = decoder.with_windows([kind == "sliding_attention" for kind in kinds], window)
    decoder = replace(
        decoder.without_positions(whole).named(norms=_NORMS), logits=Logits(scale=f.number("logit_scale", 0.0625))
    )
    width = f.count("intermediate_size")
    softmax, count = f.get("expert_selection_fn") in ("softmax", None), f.count("num_shared_experts", 0, minimum=0)
    averaged = count > 0 and f.get("shared_expert_combination_strategy") in ("average", None)
    blocks = BesideAttention(
        routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), num_layers, sparse),
        sparse,
        f.count("prefix_dense_intermediate_size", width),
        width,
        partial(Router, softmax=softmax, averaged=averaged),
        scoring=Scoring(f.flag("norm_topk_prob", True), corrected=False),
        shared=Shared(count),
        averaged=averaged,
    )
    return Spec(decoder, blocks)


def _slides(f: Fields, num_layers: int, first: int) -> list[bool]:
    """Dense layers in front have a pattern of their own, and the others begin theirs anew."""
    front = f.count("prefix_dense_sliding_window_pattern", 1)
    every = f.count("sliding_window_pattern", 4)
    return [(i + 1) % front != 0 if i < first else (i - first + 1) % every != 0 for i in range(num_layers)]


class Router:
    """The experts of the best scores; weighted is by their softmax, or by their sigmoids."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite, *, softmax: bool, averaged: bool) -> None:
        weights, self._softmax, self._averaged = layers.weights, softmax, averaged
        self._math, self._routing = weights.math, weights.routing
        self._top_k, self._normalise = moe.moe.top_k, moe.scoring.normalise
        self._norm, self._gate = weights.norm(site.norm), weights.linear(site.block + moe.names.gate)

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math = self._math
        hidden = self._norm(x)
        scores = self._gate(hidden)
        ids = math.top_k(scores, self._top_k)
        chosen = math.take(scores, ids)
        if self._softmax:
            weights = math.softmax(chosen)
        else:
            weights = math.sigmoid(chosen)
            if self._normalise:
                weights = weights / math.sum(weights, -1, True)
        return hidden, self._routing(ids, weights * 0.5 if self._averaged else weights)


@dataclass(frozen=True, slots=True)
class BesideAttention(Moe):
    """Blocks look at the state in front of attention, on its norm."""

    averaged: bool = False  # of what routed and shared experts give

    def make(self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler) -> list[Block]:
        weights, made, a = layers.weights, list[Block](), decoder.attention
        for i in range(decoder.num_layers):
            norm = NormConfig(decoder.attention_site(i).front, a.norm_eps, a.norm)
            prefix = decoder.layer(i) + self.names.block
            if i not in self.moe_layers:
                mlp = SharedExpert(weights, prefix, activation=decoder.activation)
                made.append(Beside(weights.norm(norm), mlp))
                continue
            site = BlockSite(i, self.moe_layers.index(i), prefix, norm)
            router, shared = self.router(layers, self, site), self.shared_mlp(weights, decoder, prefix, i)
            share = 0.5 if self.averaged else 1.0
            made.append(Routed(site.moe_layer, router, experts, profiler, shared, share))
        return made


class Family(DecoderFamily):
    name = "cohere2_moe"
    parse = staticmethod(_parse)
    text = TextIn()
    renamed = RENAMED
    ignored = (r"model\.(vision_tower|multi_modal_projector)\..*",)

    def __init__(self, config: JsonObject) -> None:
        if config.get("model_type") == "cohere2_vision":  # whose language model may be another
            Fields(config).within("text_config").only("model_type", "cohere2_moe")
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: cohere_vision(config, self.decoder.attention.hidden_size))
