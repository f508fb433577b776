"""Tiny configs of dots.llm1."""

from tests.support.tiny_models import COMMON

DOTS = COMMON | {
    "model_type": "dots1",
    "head_dim": 24,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "sliding_window": None,
}
CONFIGS = {
    "dots1": DOTS,
    "dots1 windows, groups, biased": DOTS
    | {
        "sliding_window": 9,
        "max_window_layers": 1,
        "n_group": 2,
        "topk_group": 1,
        "attention_bias": True,
        "norm_topk_prob": False,
    },
}
