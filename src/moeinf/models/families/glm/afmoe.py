"""Arcee's Trinity: DeepSeek-V3's blocks and gated attention between norms on both sides (AfmoeForCausalLM).

Every fourth layer sees all tokens and has no positions; the others have a window.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Gate, HeadNorms
from moeinf.models.layers.decoder import LayerNorms, parse_decoder, sliding_layers
from moeinf.models.layers.moe import BlockNames, Moe, Scoring, Shared
from moeinf.models.layers.routers import SigmoidRouter

_NORMS = LayerNorms("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm")
_NAMES = BlockNames(
    gate="router.gate.weight", bias="expert_bias", behind="post_mlp_layernorm", behind_dense="post_mlp_layernorm"
)


def _parse(f: Fields) -> Spec:
    f.fixed(score_func="sigmoid", route_norm=True, n_group=1, topk_group=1, num_expert_groups=1, num_limited_groups=1)
    f.present("head_dim", "num_dense_layers", "num_shared_experts", "sliding_window")
    decoder = parse_decoder(f, norm_eps=1e-5, theta=1e4, head_norms=HeadNorms(), gate=Gate("gate_proj"))
    layers, window = range(decoder.num_layers), f.count("sliding_window")
    slides = sliding_layers(f, len(layers), lambda i: (i + 1) % f.count("global_attn_every_n_layers", 4) != 0)
    decoder = decoder.with_windows(slides, window)
    decoder = replace(
        decoder.without_positions({i for i in layers if not slides[i]}).named(norms=_NORMS),
        embedding_scale=decoder.attention.hidden_size**0.5 if f.flag("mup_enabled", False) else 1.0,
    )
    moe_layers = tuple(layers[f.count("num_dense_layers", minimum=0, maximum=len(layers) - 1) :])
    blocks = Moe(
        routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), len(layers), moe_layers),
        moe_layers,
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        SigmoidRouter,
        scoring=Scoring(scaling=f.number("route_scale", 1.0)),
        shared=Shared(f.count("num_shared_experts", minimum=0)),
        names=_NAMES,
    )
    return Spec(decoder, blocks)


class Family(DecoderFamily):
    name = "afmoe"
    parse = staticmethod(_parse)
