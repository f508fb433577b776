"""Tiny configs of MiMo-V2-Flash."""

from typing import Any

from tests.support.tiny_models import COMMON

MIMO: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "mimo_v2_flash",
    "head_dim": 24,
    "v_head_dim": 16,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.4,
}
CONFIGS = {
    "mimo_v2_flash": MIMO,
    "mimo_v2_flash biased, values as wide as keys": MIMO
    | {
        "attention_bias": True,
        "v_head_dim": 24,
        "attention_value_scale": None,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "sparse"],
    },
    "mimo_v2_flash biased, values wider than keys": MIMO | {"attention_bias": True, "v_head_dim": 40},
}
