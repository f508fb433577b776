"""Tiny configs of Gemma 4: whole checkpoints, whose models of images and sound are left out."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "gemma4_text",
    "tie_word_embeddings": True,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 3,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 3.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
    },
}
GEMMA4: dict[str, Any] = {"model_type": "gemma4", "text_config": _TEXT, "tie_word_embeddings": True}
_VISION: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 60,
    "initializer_range": 0.2,
}
_IDS = {"image_token_id": 90, "video_token_id": 91, "audio_token_id": 89, "boi_token_id": 92, "eoi_token_id": 93}
SEEING: dict[str, dict[str, Any]] = {
    "gemma4": GEMMA4
    | _IDS
    | {"text_config": _TEXT | {"use_bidirectional_attention": "vision", "pad_token_id": 0}, "vision_config": _VISION},
    "gemma4 standardised, no bidirectional attention": GEMMA4
    | _IDS
    | {"text_config": _TEXT | {"pad_token_id": 0}, "vision_config": _VISION | {"standardize": True}},
}
_DENSE = {name: value for name, value in _TEXT.items() if "experts" not in name and name != "moe_intermediate_size"}
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma4": GEMMA4,
    "gemma4 without experts": GEMMA4 | {"text_config": _DENSE | {"enable_moe_block": False}},
    "gemma4 untied, biased, keys and values apart": GEMMA4
    | {
        "tie_word_embeddings": False,
        "text_config": _TEXT
        | {
            "tie_word_embeddings": False,
            "attention_bias": True,
            "attention_k_eq_v": False,
            "final_logit_softcapping": None,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', with numbers that it leaves at 1."""
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    model: Any = Gemma4ForConditionalGeneration(Gemma4Config(**values))
    model.float().eval()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith(("router.scale", "per_expert_scale", "layer_scalar")):
                tensor.mul_(1 + 0.3 * torch.rand_like(tensor))
    return model
