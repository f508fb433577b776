"""Tiny configs of Llama 4: whole checkpoints, and one of which the tower is read."""

from typing import Any

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "llama4_text",
    "head_dim": 16,
    "num_hidden_layers": 4,
    "no_rope_layer_interval": 2,
    "attention_chunk_size": 7,
    "floor_scale": 4,
    "attn_scale": 0.3,
    "intermediate_size": 24,
    "intermediate_size_mlp": 48,
    "num_local_experts": 8,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_VISION: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "vision_output_dim": 20,
    "image_size": 16,
    "patch_size": 4,
    "projector_input_dim": 20,
    "projector_output_dim": 20,
    "pixel_shuffle_ratio": 0.5,
    "hidden_act": "gelu",
    "norm_eps": 1e-5,
    "initializer_range": 0.2,
}
LLAMA4: dict[str, Any] = {"model_type": "llama4", "text_config": _TEXT}
SEEING: dict[str, dict[str, Any]] = {
    "llama4": LLAMA4 | {"vision_config": _VISION, "image_token_index": 90, "boi_token_index": 92, "eoi_token_index": 93}
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama4": LLAMA4,
    "llama4 two experts, dense layers, biased, no norms, listed positions": LLAMA4
    | {
        "text_config": _TEXT
        | {
            "num_experts_per_tok": 2,
            "hidden_act": "relu",
            "interleave_moe_layer_step": 2,
            "attention_bias": True,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "no_rope_layers": [0, 1, 1, 1],
            "layer_types": ["chunked_attention", "full_attention", "chunked_attention", "full_attention"],
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        }
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vision_output_dim": 16,
        "image_size": 4,
        "patch_size": 2,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    }
    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = Llama4ForConditionalGeneration(Llama4Config(**values, vision_config=vision))
    whole.float().eval()
    del whole.vision_model, whole.multi_modal_projector
    whole.forward = whole.language_model.forward  # as of 5.24 the whole model cannot be given text alone
    return whole
