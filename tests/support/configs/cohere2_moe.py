"""Tiny configs of Cohere's models with experts."""

from tests.support.tiny_models import COMMON

COHERE2 = COMMON | {
    "model_type": "cohere2_moe",
    "head_dim": 16,
    "tie_word_embeddings": True,
    "intermediate_size": 24,
    "prefix_dense_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "logit_scale": 0.25,
}
CONFIGS = {
    "cohere2_moe": COHERE2,
    "cohere2_moe sigmoids, RMS norms, sums, untied": COHERE2
    | {
        "expert_selection_fn": "sigmoid",
        "rms_norm_eps": 1e-5,
        "shared_expert_combination_strategy": "sum",
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "prefix_dense_sliding_window_pattern": 2,
    },
}
