"""Tiny configs of Arcee's Trinity."""

from tests.support.tiny_models import COMMON

AFMOE = COMMON | {
    "model_type": "afmoe",
    "head_dim": 24,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "num_dense_layers": 1,
    "route_scale": 2.5,
    "sliding_window": 9,
    "global_attn_every_n_layers": 2,
    "mup_enabled": True,
}
CONFIGS = {
    "afmoe": AFMOE,
    "afmoe no dense layers, nothing shared, listed windows, tied": AFMOE
    | {
        "num_dense_layers": 0,
        "num_shared_experts": 0,
        "mup_enabled": False,
        "tie_word_embeddings": True,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
}
