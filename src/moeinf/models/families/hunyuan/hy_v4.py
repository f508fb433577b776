"""Hunyuan 4: GLM-5's attention with gates and sinks, between hyper-connections that mix no streams (HYV4ForCausalLM).

Tensors have the names of the published checkpoints, of which transformers saves some under others. Rotary pairs are
neighbours, and norms of latents have the epsilon of all others, as vLLM and llama.cpp have it of the published
checkpoints and transformers of Hunyuan 4 VL; transformers' Hunyuan 4 has pairs half a head apart, and 1e-6.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from moeinf.models.families.deepseek import deepseek_v32
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.indexed import IndexConfig, indexed_layers
from moeinf.models.layers.latent.mla import LatentGate, parse_latent
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.layers.streams.mixed_decoder import MixedConnections, StreamNames
from moeinf.models.layers.streams.mixed_residual import MixedStreams
from moeinf.types import ExpertForm

_STREAMS = StreamNames("hc_attn_layer.hc_pre.hc_", "hc_mlp_layer.hc_pre.hc_", "hc_head.hc_head_")


def parse(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", gated_mla=True, gating_type="elementwise", learnable_sink=True, enable_ihc=True)
    f.present("routed_scaling_factor", "swiglu_limit")
    decoder, latent = parse_latent(f, interleaved=True, norm_eps=1e-5)
    num_layers, a = decoder.num_layers, decoder.attention
    f.kinds("layer_types", num_layers, "indexed_attention")
    latent = latent.named(sinks="learnable_sink_param")
    latent = replace(latent, gate=LatentGate("values", "linear_gate"), eps=a.norm_eps)
    choosing = _choosing(f, num_layers)
    index = IndexConfig.parse(f, latent, choosing, interleaved=True)
    index = replace(index, heads=replace(index.heads, at_end=True), key_eps=a.norm_eps)
    layers = sparse_layers(f, num_layers, first_dense=1)
    blocks = sigmoid_moe(f, num_layers, moe_layers=layers)
    eps = f.number("hc_eps", 1e-6)
    streams = MixedStreams(
        f.count("hc_mult", 4, minimum=2, maximum=64),
        a.hidden_size,
        a.norm_eps,
        eps,
        magnitude=f.number("hc_magnitude", 2.0),
        after_eps=eps,
    )
    return Spec(
        replace(decoder, replaces=True),
        replace(blocks, expert_form=ExpertForm("silu_clamped", limit=f.number("swiglu_limit"))),
        indexed_layers(latent, index, choosing),
        MixedConnections(streams, _STREAMS),
    )


def _choosing(f: Fields, num_layers: int) -> tuple[bool, ...]:
    kinds = f.kinds("indexer_types", num_layers, "full", "shared")
    if kinds is None:
        return tuple(i == 0 or i % 4 == 1 for i in range(num_layers))
    return tuple(kind == "full" for kind in kinds)


class Family(deepseek_v32.Family):
    name = "hy_v4"
    divisible = False
    parse = staticmethod(parse)
    matrices: ClassVar[tuple[str, ...]] = (*deepseek_v32.Family.matrices, ".linear_gate.weight")
    ahead = (r"model\.mtp_layers\..*",)
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"\.hc_pre\.(hc_(attn|mlp)_layer)\.", r".\1.hc_pre."),
        (r"\.hc_pre\.hc_head\.", ".hc_head."),
        (r"(\.mlp\.|\.shared_experts\.)linear_gate\.", r"\1gate_proj."),
    )
