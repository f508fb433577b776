"""Tiny configs of Qwen1.5-MoE and Qwen2-MoE."""

from tests.support.tiny_models import COMMON

QWEN2 = COMMON | {
    "model_type": "qwen2_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "intermediate_size": 48,
    "sliding_window": 9,
    "max_window_layers": 1,
}
CONFIGS = {
    "qwen2_moe": QWEN2,
    "qwen2_moe tied, normalised, without biases": QWEN2
    | {"tie_word_embeddings": True, "norm_topk_prob": True, "qkv_bias": False},
    "qwen2_moe sliding window": QWEN2 | {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe dense layers, squared relu": QWEN2
    | {"decoder_sparse_step": 2, "num_hidden_layers": 4, "mlp_only_layers": [3], "hidden_act": "relu2"},
}
