"""Tiny configs of Qwen3-MoE."""

from tests.support.tiny_models import COMMON

QWEN3 = COMMON | {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "intermediate_size": 48,
    "head_dim": 24,
    "norm_topk_prob": True,
}
CONFIGS = {
    "qwen3_moe": QWEN3,
    "qwen3_moe tied, weights not normalised": QWEN3 | {"tie_word_embeddings": True, "norm_topk_prob": False},
    "qwen3_moe dense layers, biased attention": QWEN3 | {"decoder_sparse_step": 2, "attention_bias": True},
    "qwen3_moe sliding window": QWEN3 | {"use_sliding_window": True, "sliding_window": 7},
    "qwen3_moe dense layers by name": QWEN3 | {"mlp_only_layers": [1]},
}
