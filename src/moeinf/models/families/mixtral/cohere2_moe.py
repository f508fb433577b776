"""Cohere's Command and North with experts: attention and experts side by side on one norm (Cohere2MoeForCausalLM).

Every fourth layer sees all tokens and has no positions; the others have a window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.models.families.glm import glm4_moe
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.decoder import Decoder, LayerNorms, Logits, parse_decoder
from moeinf.models.layers.deepseek_moe import DeepseekMoe
from moeinf.models.layers.moe_block import Beside, Looked, Routed, SharedExpert, SideBySide
from moeinf.models.layers.protocol import Attention, Block, Experts, Layers, Weights
from moeinf.models.layers.rope import rope_of, whole_heads
from moeinf.types import Profiler

_NORMS = LayerNorms(block=None)


@dataclass(frozen=True, slots=True)
class Config(glm4_moe.Config):
    softmax: bool  # over the chosen experts; else their sigmoids
    averaged: bool  # of what routed and shared experts give


def _parse(f: Fields) -> Config:
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
    decoder = decoder.with_windows([window if kind == "sliding_attention" else None for kind in kinds])
    decoder = replace(
        decoder.without_positions(whole).named(norms=_NORMS), logits=Logits(scale=f.number("logit_scale", 0.0625))
    )
    width = f.count("intermediate_size")
    blocks = DeepseekMoe(
        routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), num_layers, sparse),
        sparse,
        f.count("prefix_dense_intermediate_size", width),
        width,
        f.count("num_shared_experts", 0, minimum=0),
        normalise=f.flag("norm_topk_prob", True),
        corrected=False,
    )
    softmax = f.get("expert_selection_fn") in ("softmax", None)
    averaged = bool(blocks.num_shared_experts) and f.get("shared_expert_combination_strategy") in ("average", None)
    return Config(decoder, blocks, softmax, averaged)


def _slides(f: Fields, num_layers: int, first: int) -> list[bool]:
    """Dense layers in front have a pattern of their own, and the others begin theirs anew."""
    front = f.count("prefix_dense_sliding_window_pattern", 1)
    every = f.count("sliding_window_pattern", 4)
    return [(i + 1) % front != 0 if i < first else (i - first + 1) % every != 0 for i in range(num_layers)]


class Router:
    """The experts of the best scores; weighted is by their softmax, or by their sigmoids."""

    def __init__(self, weights: Weights, config: Config, block: str, norm: NormConfig) -> None:
        self._config, self._math, self._routing = config, weights.math, weights.routing
        self._norm, self._gate = weights.norm(norm), weights.linear(f"{block}gate.weight")

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        c, math = self._config, self._math
        hidden = self._norm(x)
        scores = self._gate(hidden)
        ids = math.top_k(scores, c.blocks.moe.top_k)
        chosen = math.take(scores, ids)
        if c.softmax:
            weights = math.softmax(chosen)
        else:
            weights = math.sigmoid(chosen)
            if c.blocks.normalise:
                weights = weights / math.sum(weights, -1, True)
        return hidden, self._routing(ids, weights * 0.5 if c.averaged else weights)


class Family(glm4_moe.Family):
    name = "cohere2_moe"
    parse = staticmethod(_parse)
    _config: Config

    def assemble(self, layers: Layers, experts: Experts, profiler: Profiler) -> Decoder:
        c, d, weights = self._config, self.decoder, layers.weights
        attentions, blocks = list[Attention](), list[Block]()
        for i in range(d.num_layers):
            site = d.attention_site(i)
            norm = NormConfig(site.front, d.attention.norm_eps, d.attention.norm)
            prefix = f"{d.prefix}layers.{i}.{c.blocks.names.block}"
            block: SideBySide
            if i in c.blocks.moe_layers:
                router = Router(weights, c, prefix, norm)
                shared = (
                    SharedExpert(weights, f"{prefix}shared_experts.", activation=c.decoder.activation)
                    if c.blocks.num_shared_experts
                    else None
                )
                share = 0.5 if c.averaged else 1.0
                moe_layer = c.blocks.moe_layers.index(i)
                block = Routed(moe_layer, router, experts, profiler, None if shared is None else shared, share)
            else:
                block = Beside(weights.norm(norm), SharedExpert(weights, prefix, activation=c.decoder.activation))
            attentions.append(Looked(block, layers.attention(d.attention_of(i), site)))
            blocks.append(block)
        return Decoder(d, layers, blocks, experts, profiler, attentions)
