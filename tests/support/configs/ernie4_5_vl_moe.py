"""Tiny configs of ERNIE 4.5 VL: whole checkpoints, and some of which the tower is read."""

from typing import Any

from tests.support.tiny_models import COMMON

_LEFT_OUT = ("rope_theta", "bos_token_id", "eos_token_id")
_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name not in _LEFT_OUT} | {
    "intermediate_size": 48,
    "moe_intermediate_size": [24, 8],
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_num_shared_experts": 2,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 4]},
}
_VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "patch_size": 4}
_IDS = {
    "image_token_id": 90,
    "video_token_id": 91,
    "image_start_token_id": 92,
    "image_end_token_id": 93,
    "video_start_token_id": 94,
    "video_end_token_id": 95,
}
ERNIE_VL: dict[str, Any] = {
    "model_type": "ernie4_5_vl_moe",
    "text_config": _TEXT,
    "vision_config": _VISION,
    "tie_word_embeddings": True,
    **_IDS,
}
SEEING: dict[str, dict[str, Any]] = {
    "ernie4_5_vl_moe": ERNIE_VL
    | {"vision_config": _VISION | {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 24}},
    "ernie4_5_vl_moe wide experts for pictures": ERNIE_VL
    | {"text_config": _TEXT | {"moe_intermediate_size": [8, 24], "moe_num_shared_experts": 0}},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "ernie4_5_vl_moe": ERNIE_VL,
    "ernie4_5_vl_moe untied, listed layers, nothing shared": ERNIE_VL
    | {
        "tie_word_embeddings": False,
        "text_config": _TEXT
        | {"tie_word_embeddings": False, "moe_num_shared_experts": 0, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images; its experts for images stay, and no text is routed to them."""
    from transformers import Ernie4_5_VLMoeConfig, Ernie4_5_VLMoeForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = Ernie4_5_VLMoeForConditionalGeneration(Ernie4_5_VLMoeConfig(**values))
    whole.float().eval()
    del whole.model.vision_tower, whole.model.resampler_model
    return whole
