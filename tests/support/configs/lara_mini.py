"""Tiny configs of Lara 4 Mini."""

from typing import Any

from tests.support.tiny_models import COMMON

LARA: dict[str, Any] = COMMON | {
    "model_type": "lara_mini",
    "head_dim": 24,
    "num_hidden_layers": 5,
    "sliding_window": 7,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "rms_norm_eps": 1e-4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "lara_mini": LARA,
    "lara_mini tied, biased, layer types": LARA
    | {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "linear_attention", "full_attention"],
        "tie_word_embeddings": True,
        "attention_bias": True,
        "norm_topk_prob": False,
        "linear_conv_kernel_dim": 2,
    },
}
