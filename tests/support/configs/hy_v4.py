"""Tiny configs of Hunyuan 4, of which some layers share what others have chosen."""

from typing import Any

import torch

from tests.support.configs.deepseek_v2 import YARN
from tests.support.tiny_models import COMMON, transformers_model

HY_V4: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"} | {
    "model_type": "hy_v4",
    "pad_token_id": 0,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
    "index_n_heads": 16,
    "index_head_dim": 12,
    "index_topk": 6,
    "indexer_types": ["full", "shared", "full"],
    "hc_mult": 3,
    "hc_eps": 1e-3,
    "hc_magnitude": 1.6,
    "rms_norm_eps": 1e-4,
    "swiglu_limit": 0.4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "hy_v4": HY_V4,
    "hy_v4 more than the context, yarn, biased": {
        name: value for name, value in HY_V4.items() if name not in ("indexer_types", "topk_group", "n_group")
    }
    | {
        "index_topk": 200,
        "attention_bias": True,
        "norm_topk_prob": False,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', with the rotary pairs of Hunyuan 4 VL, which are neighbours, and its epsilon of latents."""
    from transformers.models.hy_v4 import modeling_hy_v4
    from transformers.models.hy_v4_vl.modeling_hy_v4_vl import apply_rotary_pos_emb

    module: Any = modeling_hy_v4
    module.apply_rotary_pos_emb = apply_rotary_pos_emb
    model = transformers_model(config)
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            norm.variance_epsilon = model.config.rms_norm_eps
    for name, tensor in model.named_parameters():
        if name.endswith(("sinks", "base", "scale")):  # made alike, which would hide them
            torch.nn.init.normal_(tensor, std=0.5)
    return model
