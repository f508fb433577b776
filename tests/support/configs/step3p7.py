"""Tiny configs of Step 3.5 and 3.7: whole checkpoints, and some of which the tower is read."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "head_dim": 16,
    "sliding_window": 7,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_sliding_attention_heads": 6,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "share_expert_dim": 40,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_router_scaling_factor": 1.4,
    "swiglu_limits": [None, 0.0, 0.3],
    "swiglu_limits_shared": [None, 0.0, 0.2],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0},
    },
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
    "original_max_position_embeddings": 64,
}
_WHOLE: dict[str, Any] = _TEXT["rope_parameters"]["full_attention"]
_VISION: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "mlp_ratio": 1.5,
    "image_size": 64,
    "patch_size": 4,
    "initializer_range": 0.2,
}
STEP: dict[str, Any] = {"model_type": "step3p7", "text_config": _TEXT}
SEEING: dict[str, dict[str, Any]] = {
    "step3p7": STEP | {"vision_config": _VISION, "image_token_id": 90},
    "step3p7 biased projector": STEP | {"vision_config": _VISION, "image_token_id": 90, "projector_bias": True},
}
SEEING_FILES: dict[str, dict[str, Any]] = {  # with patches of which windows of the published size are made
    "step3p7 in files": STEP | {"vision_config": _VISION | {"image_size": 112, "patch_size": 14}, "image_token_id": 90}
}
CONFIGS: dict[str, dict[str, Any]] = {
    "step3p7": STEP,
    "step3p7 biased, no limits, one kind of layer": STEP
    | {
        "text_config": _TEXT
        | {
            "attention_bias": True,
            "swiglu_limits": None,
            "swiglu_limits_shared": None,
            "query_pre_attn_scalar": 20,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": {"full_attention": _WHOLE | LLAMA3},
            "mlp_layer_types": ["sparse"] * 3,
        }
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import Step3p7Config, Step3p7ForConditionalGeneration

    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 28,
        "patch_size": 14,
    }
    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = Step3p7ForConditionalGeneration(Step3p7Config(**values, vision_config=vision))
    whole.float().eval()
    del whole.model.vision_model, whole.model.multi_modal_projector
    for name, parameter in whole.named_parameters():
        if "layernorm" in name or name.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, std=0.1)
    return whole
