"""Tiny configs of Kimi K3."""

from typing import Any

from tests.oracles.kimi_k3 import KimiK3Reference
from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "kimi_linear",
    "num_key_value_heads": 4,
    "num_hidden_layers": 5,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 12,
    "num_experts_per_token": 3,
    "num_shared_experts": 2,
    "num_expert_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "moe_renormalize": True,
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "use_grouped_topk": True,
    "routed_scaling_factor": 1.3,
    "routed_expert_hidden_size": 32,
    "latent_moe_use_norm": True,
    "first_k_dense_replace": 1,
    "attn_res_block_size": 2,
    "hidden_act": "situ",
    "activation_situ_beta": 1.2,
    "activation_situ_linear_beta": 1.5,
    "initializer_range": 0.12,  # with that of the others float32 is too coarse to compare by
    "linear_attn_config": {
        "kda_layers": [1, 2, 4],
        "full_attn_layers": [3, 5],
        "num_heads": 4,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
        "use_full_rank_gate": True,
    },
    "rms_norm_eps": 1e-4,  # as of qwen3_next
    "num_nextn_predict_layers": 0,
}
KIMI_K3: dict[str, Any] = {
    "model_type": "kimi_k3",
    "text_config": _TEXT,
    "vision_config": {"vt_num_hidden_layers": 2, "vt_hidden_size": 16},
    "media_placeholder_token_id": 96,
    "tie_word_embeddings": False,
}
_OTHER = {
    "num_hidden_layers": 4,
    "q_lora_rank": None,
    "mla_use_output_gate": False,
    "num_expert_group": 4,
    "topk_group": 2,
    "moe_renormalize": False,
    "num_shared_experts": 1,
    "activation_situ_linear_beta": None,
    "linear_attn_config": _TEXT["linear_attn_config"]
    | {
        "kda_layers": [1, 3],
        "full_attn_layers": [2, 4],
        "num_heads": 9,
        "head_dim": 8,
        "gate_lower_bound": None,
        "use_full_rank_gate": False,
    },
}
_VISION: dict[str, Any] = {
    "vt_num_hidden_layers": 3,
    "vt_hidden_size": 16,
    "vt_intermediate_size": 24,
    "vt_num_attention_heads": 3,
    "qkv_hidden_size": 24,
    "patch_size": 4,
    "init_pos_emb_height": 5,
    "init_pos_emb_width": 5,
    "merge_kernel_size": [2, 2],
    "mm_projector_type": "patchmergerv2",
    "norm_type": "rmsnorm",
    "attn_bias": False,
    "linear_bias": False,
    "patch_embed_proj_bias": False,
    "pos_emb_interpolation_mode": "bilinear",
    "projector_ln_eps": 1e-3,
}
SEEING: dict[str, dict[str, Any]] = {"kimi_k3": KIMI_K3 | {"vision_config": _VISION}}
CONFIGS: dict[str, dict[str, Any]] = {
    "kimi_k3": KIMI_K3,
    "kimi_k3 groups, decays without a bound, a last block of one layer": KIMI_K3
    | {"text_config": _TEXT | _OTHER | {"attn_res_block_size": 3, "latent_moe_use_norm": False}},
    "kimi_k3 no attention residuals, experts as wide as the model, silu": KIMI_K3
    | {
        "text_config": _TEXT
        | {
            "num_hidden_layers": 3,
            "attn_res_block_size": None,
            "routed_expert_hidden_size": None,
            "hidden_act": "silu",
            "linear_attn_config": _TEXT["linear_attn_config"] | {"kda_layers": [1, 3], "full_attn_layers": [2]},
        }
    },
}
REFERENCE = KimiK3Reference
