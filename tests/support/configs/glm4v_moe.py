"""Tiny configs of GLM-4.5V: whole checkpoints, and one of which the tower is read."""

from typing import Any

from tests.support.configs.glm4_moe import GLM4
from tests.support.tiny_models import COMMON, without_vision

_LEFT_OUT = ("model_type", "use_qk_norm", "num_nextn_predict_layers", "rope_theta", "partial_rotary_factor")
_TEXT: dict[str, Any] = {name: value for name, value in GLM4.items() if name not in _LEFT_OUT} | {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 2, 2],
    }
}
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": COMMON["hidden_size"],
}
_IDS = {
    "image_token_id": 90,
    "video_token_id": 91,
    "image_start_token_id": 92,
    "image_end_token_id": 93,
    "video_start_token_id": 94,
    "video_end_token_id": 95,
}
GLM4V: dict[str, Any] = {"model_type": "glm4v_moe", "text_config": _TEXT, "vision_config": _VISION, **_IDS}
SEEING: dict[str, dict[str, Any]] = {
    "glm4v_moe": GLM4V
    | {
        "text_config": _TEXT | {"rope_parameters": _TEXT["rope_parameters"] | {"mrope_section": [1, 2, 3]}},
        "vision_config": _VISION
        | {"depth": 2, "patch_size": 8, "image_size": 40, "intermediate_size": 24, "initializer_range": 0.15},
    }
}
CONFIGS: dict[str, dict[str, Any]] = {
    "glm4v_moe": GLM4V,
    "glm4v_moe groups, no biases": GLM4V
    | {"text_config": _TEXT | {"n_group": 2, "topk_group": 1, "attention_bias": False, "norm_topk_prob": False}},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    return without_vision("Glm4vMoe", config)
