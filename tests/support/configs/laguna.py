"""Tiny configs of Laguna."""

from typing import Any

from tests.support.tiny_models import COMMON

LAGUNA: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "laguna",
    "head_dim": 16,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_attention_heads_per_layer": [4, 6, 4],
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_routed_scaling_factor": 1.4,
}
CONFIGS = {
    "laguna": LAGUNA,
    "laguna a gate for each number, biased, capped": LAGUNA
    | {
        "gating": "per-element",
        "attention_bias": True,
        "moe_router_logit_softcapping": 2.0,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "sparse"],
        "num_attention_heads_per_layer": None,
    },
}
