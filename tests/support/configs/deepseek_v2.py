"""Tiny configs of DeepSeek-V2."""

from tests.support.tiny_models import COMMON

DEEPSEEK_V2 = COMMON | {
    "model_type": "deepseek_v2",
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-4,
    "norm_topk_prob": False,
    "topk_method": "greedy",
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 64,
    "mscale": 0.9,
    "mscale_all_dim": 0.707,
}
CONFIGS = {
    "deepseek_v2 lite": DEEPSEEK_V2 | {"rope_scaling": YARN | {"mscale": 0.707}},
    "deepseek_v2 groups, compressed queries": DEEPSEEK_V2
    | {
        "q_lora_rank": 20,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "attention_bias": True,
        "rope_scaling": YARN,
    },
}
