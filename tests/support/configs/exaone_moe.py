"""Tiny configs of K-EXAONE."""

from tests.support.tiny_models import COMMON

EXAONE = COMMON | {
    "model_type": "exaone_moe",
    "head_dim": 24,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "sliding_window": 9,
    "sliding_window_pattern": 2,
}
CONFIGS = {
    "exaone_moe": EXAONE,
    "exaone_moe groups, listed layers": EXAONE
    | {
        "n_group": 2,
        "topk_group": 1,
        "norm_topk_prob": False,
        "num_shared_experts": 2,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
}
