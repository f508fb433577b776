"""Hunyuan 3: Qwen3's attention, sigmoid routing with a correction bias, a shared expert (HYV3ForCausalLM)."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from moeinf.models.families.glm import glm4_moe
from moeinf.models.families.glm.glm4_moe import Config
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.deepseek_moe import BlockNames, DeepseekMoe, sparse_layers
from moeinf.types import TensorPlan

_NAMES = BlockNames(gate="router.gate.weight", bias="expert_bias", shared="shared_mlp.")


def _parse(f: Fields) -> Config:
    f.only("first_k_dense_replace", 1, None)  # what a missing list of layers means
    f.present("head_dim", "num_shared_experts", "router_scaling_factor")
    decoder = parse_decoder(f, norm_eps=1e-5, theta=11_158_840.0, head_norms=HeadNorms())
    layers = sparse_layers(f, decoder.num_layers, first_dense=1)
    top_k = f.count("num_experts_per_tok")
    blocks = DeepseekMoe(
        routed_shape(f, ("num_experts", "num_local_experts"), top_k, decoder.num_layers, layers),
        layers,
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        f.count("num_shared_experts"),
        scaling=f.number("router_scaling_factor"),
        num_future_layers=f.count("num_nextn_predict_layers", 1, 0, MOST_LAYERS),
        names=_NAMES,
        mlp_bias=f.flag("mlp_bias", False),
    )
    return Config(decoder, blocks)


class Family(glm4_moe.Family):
    name = "hy_v3"
    parse = staticmethod(_parse)

    @cached_property
    def tensors(self) -> TensorPlan:
        renamed = {r"\.mlp\.gate\.": ".mlp.router.gate.", r"\.mlp\.e_score_correction_bias": ".mlp.expert_bias"}
        return replace(super().tensors, renamed=renamed | {r"\.mlp\.shared_experts\.": ".mlp.shared_mlp."})
