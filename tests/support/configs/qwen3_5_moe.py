"""Tiny configs of Qwen3.5-MoE: whole checkpoints, whose model of images is left out, and the language model alone."""

from typing import Any

from tests.support.configs.qwen3_next import NEXT
from tests.support.tiny_models import transformers_model, without_vision

_TEXT: dict[str, Any] = {
    name: value
    for name, value in NEXT.items()
    if name not in ("model_type", "rope_theta", "partial_rotary_factor", "norm_topk_prob", "intermediate_size")
} | {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
}
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
_IDS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
QWEN3_5: dict[str, Any] = {"model_type": "qwen3_5_moe", "text_config": _TEXT, "vision_config": _VISION, **_IDS}
SEEING: dict[str, dict[str, Any]] = {
    "qwen3_5_moe": QWEN3_5
    | {
        "text_config": _TEXT
        | {
            "head_dim": 32,
            "rope_parameters": _TEXT["rope_parameters"] | {"partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2]},
        },
        "vision_config": _VISION | {"depth": 2, "patch_size": 8},
    }
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_moe": QWEN3_5,
    "qwen3_5_moe tied": QWEN3_5 | {"text_config": _TEXT | {"tie_word_embeddings": True}, "tie_word_embeddings": True},
    "qwen3_5_moe language model alone": {"model_type": "qwen3_5_moe", **_TEXT},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    if "text_config" in config:
        return without_vision("Qwen3_5Moe", config)
    return transformers_model(config | {"model_type": "qwen3_5_moe_text"})
