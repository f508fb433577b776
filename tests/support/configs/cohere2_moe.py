"""Tiny configs of Cohere's models with experts."""

from typing import Any

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
SEEING: dict[str, dict[str, Any]] = {
    "cohere2_vision": {
        "model_type": "cohere2_vision",
        "text_config": COHERE2 | {"logit_scale": 1.0},  # as published; the reference leaves it out where it sees
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": 16,
            "patch_size": 4,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-3,
            "vision_use_head": False,
        },
        "downsample_factor": 2,
        "alignment_intermediate_size": 48,
        "image_token_id": 90,
        "tie_word_embeddings": True,
    }
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
