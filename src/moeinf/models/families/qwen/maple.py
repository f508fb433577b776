"""Maple: Qwen3-MoE's layers with windows, of which the others have no positions; experts' gates are bounded.

Follows modeling_maple.py of deepgrove/maple-preview (MapleForCausalLM).
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import all_routed
from moeinf.models.layers.routers import softmax_router
from moeinf.types import ExpertForm

_LIMIT = 7.0  # of gates and of what they multiply, which no config says


def _parse(f: Fields) -> Spec:
    silu_alone(f)
    f.fixed(
        num_shared_experts=0,
        norm_topk_prob=True,
        use_qk_norm=True,
        use_bias=False,
        attention_bias=False,
        moe_router_enable_expert_bias=False,
        nope_on_global_attention=True,
        qat_ternary=False,
    )
    f.present("head_dim", "layer_types", "partial_rotary_factor", "sliding_window")
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e4, partial=1.0, head_norms=HeadNorms())
    layers = range(decoder.num_layers)
    kinds = f.kinds("layer_types", len(layers), "sliding_attention", "full_attention")
    if kinds is None:
        raise CheckpointError(f"{f.said('layer_types')} is missing")
    slides = [kind == "sliding_attention" for kind in kinds]
    decoder = decoder.with_windows(slides, f.count("sliding_window"))
    decoder = decoder.without_positions({i for i in layers if not slides[i]}).named(embedding="word_embeddings")
    moe = routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), len(layers))
    blocks = all_routed(moe, f.count("moe_intermediate_size"), softmax_router)
    return Spec(decoder, replace(blocks, expert_form=ExpertForm("silu_clamped", limit=_LIMIT)))


class Family(DecoderFamily):
    name = "maple"
    parse = staticmethod(_parse)
