"""Tiny configs of ZAYA1."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON, transformers_model

ZAYA: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "zaya",
    "head_dim": 16,
    "num_experts": 8,
    "moe_intermediate_size": 24,
    "router_hidden_size": 20,
    "cca_time0": 3,
    "cca_time1": 2,
    "sliding_window": 7,
    "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
    "rope_parameters": {
        "hybrid": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "hybrid_sliding": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
    },
    "lm_head_bias": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "zaya": ZAYA,
    "zaya biased, tied, default layers": {
        name: value for name, value in ZAYA.items() if name not in ("layer_types", "rope_parameters", "lm_head_bias")
    }
    | {"attention_bias": True, "tie_word_embeddings": True, "cca_time0": 2, "cca_time1": 3, "num_attention_heads": 2},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', with numbers where it begins with zeros or ones; some tokens use no expert."""
    model = transformers_model(config)
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith((".temp", "_scale", "_bias", "conv_qk_depthwise.weight", "conv_qk_grouped.weight")):
            torch.nn.init.normal_(parameter, 0.0 if name.endswith("_bias") else 1.0, 0.3)
        if name.endswith("balancing_biases"):
            torch.nn.init.normal_(parameter, 0.0, 0.1)
            parameter[-1] = 0.3
    return model
