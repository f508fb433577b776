"""Tiny configs of Flint."""

from tests.support.tiny_models import COMMON

FLINT = COMMON | {
    "model_type": "flint",
    "head_dim": 24,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "sliding_window": 9,
    "num_hidden_layers": 4,
}
CONFIGS = {
    "flint": FLINT,
    "flint listed windows, biased, weights not normalised": FLINT
    | {
        "attention_bias": True,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    },
}
