"""Tiny configs of K2 Horizon."""

from typing import Any

from tests.oracles.decoders.value_experts import HorizonReference
from tests.support.tiny_models import COMMON

HORIZON: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "k2_horizon",
    "head_dim": 24,
    "rope_head_dim": 24,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    "rms_norm_eps": 1e-6,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "norm_topk_prob": True,
    "moe_gate_bias": True,
    "router_score_func": "sigmoid",
    "router_scaling_factor": 2.5,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 1,
    "layernorm_num_groups": 2,
    "query_key_norm": False,
    "attention_gate_func": "softplus",
    "mova_num_experts": 7,
    "mova_num_experts_per_tok": 2,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "hidden_act": "silu",
}
CONFIGS = {
    "k2_horizon": HORIZON,
    "k2_horizon of 375B: plain values, a part of each head turns": HORIZON
    | {
        "rope_head_dim": 12,
        "layernorm_num_groups": 1,
        "attention_gate_func": None,
        "mova_num_experts": 0,
        "mova_num_experts_per_tok": 0,
    },
    "k2_horizon one value, norms of heads, silu, no bias": HORIZON
    | {
        "query_key_norm": True,
        "attention_gate_func": "silu",
        "mova_num_experts_per_tok": 1,
        "moe_gate_bias": False,
        "norm_topk_prob": False,
        "num_shared_experts": 0,
        "layernorm_num_groups": 4,
        "tie_word_embeddings": True,
        "mlp_only_layers": [1],
    },
    "k2_horizon dense": HORIZON
    | {
        "num_experts": 0,
        "mova_num_experts": 0,
        "mlp_only_layers": [0, 1, 2],
        "attention_gate_func": None,
        "num_shared_experts": 0,
    },
}
REFERENCE = HorizonReference
