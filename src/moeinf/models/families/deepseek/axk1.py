"""A.X K1: DeepSeek-V3 with a norm of what the experts of a layer add (AXK1ForCausalLM)."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.families.deepseek.deepseek_v2 import latent_spec
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.mla import parse_latent
from moeinf.models.layers.moe import BlockNames, leading_dense, sparse_layers
from moeinf.models.layers.routers import sigmoid_moe

_OF_DENSE_LAYERS = r"model\.layers\.\d+\.post_mlp_layernorm\.weight"  # published, and not used


def _parse(f: Fields) -> Spec:
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc")
    f.present("n_group", "topk_group", "routed_scaling_factor", "q_lora_rank")
    decoder, latent = parse_latent(f, interleaved=f.flag("rope_interleave", True))
    listed = f.get("mlp_layer_types") is not None
    layers = sparse_layers(f, decoder.num_layers, first_dense=1) if listed else leading_dense(f, decoder.num_layers)
    blocks = sigmoid_moe(f, decoder.num_layers, moe_layers=layers)
    return latent_spec(decoder, latent, replace(blocks, names=BlockNames(behind="post_mlp_layernorm")))


class Family(deepseek_v3.Family):
    name = "axk1"
    parse = staticmethod(_parse)
    ignored = (_OF_DENSE_LAYERS,)
