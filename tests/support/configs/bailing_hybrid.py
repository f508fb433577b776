"""Tiny configs of Ling 3.0."""

from tests.support.tiny_models import COMMON

LING = COMMON | {
    "model_type": "bailing_hybrid",
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "layer_group_size": 2,
    "head_dim": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.4,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-4,  # as of qwen3_next
}
CONFIGS = {
    "bailing_hybrid": LING,
    "bailing_hybrid unbounded decays, biased": LING
    | {
        "kda_safe_gate": False,
        "attention_bias": True,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "num_hidden_layers": 3,
    },
}
