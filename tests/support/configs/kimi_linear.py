"""Tiny configs of Kimi Linear."""

from tests.support.tiny_models import COMMON

KIMI_LINEAR = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "kimi_linear",
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 12,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
    "routed_scaling_factor": 2.4,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "kda_layers": [1, 2, 4],
        "full_attn_layers": [3],
        "num_heads": 3,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
    },
    "rms_norm_eps": 1e-4,  # as of qwen3_next
}
CONFIGS = {
    "kimi_linear": KIMI_LINEAR,
    "kimi_linear groups, compressed queries, biased": KIMI_LINEAR
    | {"q_lora_rank": 20, "num_expert_group": 4, "topk_group": 2, "attention_bias": True, "moe_renormalize": False},
}
