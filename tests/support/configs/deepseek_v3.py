"""Tiny configs of DeepSeek-V3."""

from tests.support.configs.deepseek_v2 import YARN
from tests.support.tiny_models import COMMON

DEEPSEEK_V3 = COMMON | {
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
}
CONFIGS = {
    "deepseek_v3": DEEPSEEK_V3 | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "deepseek_v3 one group, direct queries": DEEPSEEK_V3
    | {
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": None,
        "norm_topk_prob": False,
        "rope_interleave": False,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
}
