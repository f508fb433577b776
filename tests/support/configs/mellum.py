"""Tiny configs of Mellum 2."""

from tests.support.tiny_models import COMMON

MELLUM = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "mellum",
    "head_dim": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
CONFIGS = {
    "mellum": MELLUM,
    "mellum dense layers, tied, biased": MELLUM
    | {
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "tie_word_embeddings": True,
        "attention_bias": True,
        "norm_topk_prob": False,
    },
}
