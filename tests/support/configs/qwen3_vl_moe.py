"""Tiny configs of Qwen3-VL-MoE: whole checkpoints, and some of which the tower is read."""

from typing import Any

from tests.support.configs.qwen3_moe import QWEN3
from tests.support.tiny_models import COMMON, without_vision

TEXT: dict[str, Any] = {
    name: value for name, value in QWEN3.items() if name not in ("model_type", "rope_theta", "norm_topk_prob")
} | {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [6, 3, 3],
        "mrope_interleaved": True,
    }
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": COMMON["hidden_size"],
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
_IDS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
QWEN3_VL: dict[str, Any] = {"model_type": "qwen3_vl_moe", "text_config": TEXT, "vision_config": VISION, **_IDS}
SEEING: dict[str, dict[str, Any]] = {
    "qwen3_vl_moe": QWEN3_VL
    | {"vision_config": VISION | {"depth": 4, "patch_size": 8, "deepstack_visual_indexes": [0, 2]}}
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_vl_moe": QWEN3_VL,
    "qwen3_vl_moe tied, dense layers, biased": QWEN3_VL
    | {
        "text_config": TEXT | {"tie_word_embeddings": True, "mlp_only_layers": [1], "attention_bias": True},
        "tie_word_embeddings": True,
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    return without_vision("Qwen3VLMoe", config)
