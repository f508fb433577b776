"""Sarvam 30B: the blocks and names of Ling's second generation, with whole heads turned (SarvamMoE)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.glm import bailing_moe
from moeinf.models.families.glm.bailing_moe import FUSED, NAMES
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.attention_config import HeadNorms, Projections
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames
from moeinf.models.layers.routers import sigmoid_moe

_SHARED = ("n_shared_experts", "num_shared_experts")  # as transformers saves it, and as published


def _parse(f: Fields) -> Spec:
    f.fixed(
        use_qkv_bias=False,
        attention_bias=False,
        use_bias=False,
        score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        moe_shared_expert_intermediate_size=f.get("moe_intermediate_size"),
        norm_head=False,
        router_dtype="fp32",
    )
    f.present("head_dim", "n_group", "routed_scaling_factor")
    decoder = parse_decoder(
        f,
        norm_eps=1e-6,
        theta=8e6,
        bias=False,
        output_bias=False,
        projections=Projections(fused=FUSED, output="dense"),
        head_norms=HeadNorms(names=("query_layernorm", "key_layernorm")) if f.flag("use_qk_norm", True) else None,
    )
    shared = f.replaced(n_shared_experts=f.count_of(*_SHARED)).renamed(
        {_SHARED[0]: next((name for name in _SHARED if f.get(name) is not None), _SHARED[0])}
    )
    blocks = sigmoid_moe(shared, decoder.num_layers, shared=_SHARED[0])
    names = BlockNames(bias="gate.expert_bias")
    return Spec(decoder.named(**NAMES), replace(blocks, names=names))


class Family(bailing_moe.Family):
    name = "sarvam_moe"
    parse = staticmethod(_parse)
