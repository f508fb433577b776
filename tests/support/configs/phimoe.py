"""Tiny configs of Phi-3.5-MoE, and transformers' model with the published positions."""

from __future__ import annotations

from typing import Any

from tests.support.tiny_models import COMMON, transformers_model

PHI = COMMON | {
    "model_type": "phimoe",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "attention_bias": True,
    "lm_head_bias": True,
    "router_jitter_noise": 0.1,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + i / 4 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
        "original_max_position_embeddings": 256,
    },
}
LONG = PHI["rope_parameters"] | {"original_max_position_embeddings": 16}  # the prompt is longer
CONFIGS = {
    "phimoe": PHI,
    "phimoe long, sliding window": PHI | {"rope_parameters": LONG, "sliding_window": 9, "lm_head_bias": False},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers 5.23 keeps the short factors where it takes the long mscale: long goes with long."""
    model = transformers_model(config)
    rotary = model.model.rotary_emb
    rotary.rope_init_fn = lambda config: (rotary.inv_freq, rotary.attention_scaling)  # of the length so far
    return model
