"""Tiny configs of Solar Open."""

from tests.support.tiny_models import COMMON

SOLAR = COMMON | {
    "model_type": "solar_open",
    "head_dim": 24,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
}
CONFIGS = {
    "solar_open": SOLAR,
    "solar_open groups, biased": SOLAR
    | {"n_group": 2, "topk_group": 1, "attention_bias": True, "norm_topk_prob": False, "routed_scaling_factor": 2.5},
}
