"""GLM-4.7-Flash: DeepSeek-V3 with its dense layers in a list (Glm4MoeLiteForCausalLM)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.families.deepseek.deepseek_v2 import Config
from moeinf.models.fields import Fields
from moeinf.models.layers.deepseek_moe import DeepseekMoe, sparse_layers
from moeinf.models.layers.latent.mla import parse_latent


def _parse(f: Fields) -> Config:
    f.only("scoring_func", "sigmoid", None)
    f.only("topk_method", "noaux_tc", None)
    f.only("moe_layer_freq", 1, None)
    f.only("first_k_dense_replace", 1, None)  # what a missing list of layers means
    f.only("head_dim", f.get("qk_rope_head_dim"), None)  # transformers' other name for it
    f.present("routed_scaling_factor")
    decoder, latent = parse_latent(f, interleaved=f.flag("rope_interleave", True), norm_eps=1e-5)
    blocks = DeepseekMoe.parse(
        f,
        decoder.num_layers,
        normalise=True,
        corrected=True,
        num_future_layers=1,
        moe_layers=sparse_layers(f, decoder.num_layers, first_dense=1),
    )
    return Config(decoder, latent, blocks)


class Family(deepseek_v3.Family):
    name = "glm4_moe_lite"
    parse = staticmethod(_parse)
