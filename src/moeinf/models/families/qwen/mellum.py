"""Mellum 2: Qwen3-MoE, whose layers with a window have positions of their own (MellumForCausalLM)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.qwen.qwen2_moe import qwen_moe
from moeinf.models.families.qwen.qwen3_next import MTP
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.rope import of_kind, own_shares, partial_rotary, rope_of

_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _parse(f: Fields) -> Spec:
    f.fixed(mlp_only_layers=[], decoder_sparse_step=1)
    f.present("head_dim")
    if f.get("rope_parameters") is None:
        f = f.replaced(rope_parameters=_ROPES)
    f.within("rope_parameters").refuse_others(*_ROPES)
    own_shares(f, *_ROPES)
    whole = of_kind(f, "full_attention")
    decoder = parse_decoder(whole, norm_eps=1e-6, theta=1e4, partial=1.0, head_norms=HeadNorms())
    a, layers = decoder.attention, range(decoder.num_layers)
    kinds = f.kinds("layer_types", len(layers), *_ROPES) or ("full_attention",) * len(layers)
    window = f.count("sliding_window", 0 if "sliding_window" in f else 1024) or None
    if "sliding_attention" in kinds:
        own = of_kind(f, "sliding_attention")
        rope = rope_of(own, partial_rotary(own, a.head_dim), 1e4, f.count("max_position_embeddings"))
        sliding = replace(a, rope=rope).seeing(window)
        decoder = replace(decoder, special={i: sliding for i in layers if kinds[i] == "sliding_attention"})
    sparse = sparse_layers(f, len(layers), first_dense=0)
    f = f.replaced(mlp_only_layers=[i for i in layers if i not in sparse])
    return Spec(decoder, qwen_moe(f, len(layers), norm_topk_prob=True, shared=False))


class Family(DecoderFamily):
    name = "mellum"
    parse = staticmethod(_parse)
    ahead = (MTP,)
