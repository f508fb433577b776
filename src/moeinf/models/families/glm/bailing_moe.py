"""Ling and Ring, of both generations: queries, keys and values in one matrix; softmax routing, or DeepSeek-V3's.

Follows modeling_bailing_moe.py of inclusionAI/Ling and modeling_bailing_moe_v2.py of inclusionAI/Ling-V2.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms, Projections
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe
from moeinf.models.layers.routers import SigmoidRouter, softmax_router

FUSED = "query_key_value"
NAMES = {"embedding": "word_embeddings", "attention": "attention"}


def _parse(f: Fields) -> Spec:
    second = _is_second(f)
    _refuse(f, second=second)
    decoder = parse_decoder(
        f,
        norm_eps=1e-6 if second else 1e-5,
        theta=1e4,
        partial=1.0,
        bias=False,
        output_bias=False,
        projections=Projections(fused=FUSED if f.flag("fused_projections", True) else None, output="dense"),
        head_norms=HeadNorms(names=("query_layernorm", "key_layernorm"))
        if second and f.flag("use_qk_norm", True)
        else None,
    )
    blocks = Moe.parse(
        f,
        decoder.num_layers,
        router=SigmoidRouter if second else softmax_router,
        normalise=True,
        corrected=second and f.flag("moe_router_enable_expert_bias", True),
        shared="num_shared_experts",
    )
    blocks = replace(blocks, names=BlockNames(bias="gate.expert_bias"))
    return Spec(decoder.named(**NAMES), blocks)


def _is_second(f: Fields) -> bool:
    """Both generations were published under one model_type; the name of the class, or of the scores, tells."""
    named = f.get("architectures")
    classes = named if isinstance(named, list) else []
    return (
        f.get("model_type") == "bailing_moe_v2"
        or f.get("score_function") is not None
        or any(isinstance(name, str) and name.startswith("BailingMoeV2") for name in classes)
    )


def _refuse(f: Fields, *, second: bool) -> None:
    f.only("use_bias", False, *([None] if second else []))  # the default of the first is yes
    f.fixed(
        use_qkv_bias=False,
        attention_bias=False,
        norm_head=False,
        norm_softmax=False,
        use_sliding_window=False,
        use_rmsnorm=True,
        moe_shared_expert_intermediate_size=f.get("moe_intermediate_size"),
    )
    if second:
        f.present("partial_rotary_factor", "routed_scaling_factor", "n_group")
        f.fixed(score_function="sigmoid", norm_topk_prob=True)
    else:
        f.fixed(n_group=1, routed_scaling_factor=1.0, partial_rotary_factor=1.0, use_qk_norm=False)


class Family(DecoderFamily):
    name = "bailing_moe"
    parse = staticmethod(_parse)  # fused_projections: moeinf's own, of a GGUF file
    matrices = (f".{FUSED}.weight", ".dense.weight")
