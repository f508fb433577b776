"""Tiny configs of Beam: windows shorter than the prompt, layers of both kinds with and without positions."""

from typing import Any

from tests.support.tiny_models import COMMON

_ROPES: dict[str, Any] = {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}, "full_attention": None}
BEAM: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "beam",
    "head_dim": 12,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 0.1,
    "sliding_window": 7,
    "final_logit_softcapping": 5.0,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": _ROPES,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "beam": BEAM,
    "beam default layers, biased, positions everywhere": {
        name: value for name, value in BEAM.items() if name not in ("mlp_layer_types", "layer_types")
    }
    | {
        "num_hidden_layers": 4,
        "attention_bias": True,
        "norm_topk_prob": False,
        "final_logit_softcapping": None,
        "n_group": 1,
        "topk_group": 1,
        "rope_parameters": _ROPES | {"full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    },
}
