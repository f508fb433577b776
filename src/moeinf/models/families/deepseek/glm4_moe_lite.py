"""GLM-4.7-Flash: DeepSeek-V3 with its dense layers in a list (Glm4MoeLiteForCausalLM)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.families.deepseek.deepseek_v2 import latent_spec
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.routers import sigmoid_moe


def _parse(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    f.only("first_k_dense_replace", 1, None)  # what a missing list of layers means
    f.only("head_dim", f.get("qk_rope_head_dim"), None)  # transformers' other name for it
    f.present("routed_scaling_factor")
    decoder, latent = parse_latent(f, interleaved=f.flag("rope_interleave", True), norm_eps=1e-5)
    blocks = sigmoid_moe(
        f, decoder.num_layers, num_future_layers=1, moe_layers=sparse_layers(f, decoder.num_layers, first_dense=1)
    )
    return latent_spec(decoder, latent, blocks)


class Family(deepseek_v3.Family):
    name = "glm4_moe_lite"
    parse = staticmethod(_parse)
