"""Tiny configs of Hunyuan 4 VL: whole checkpoints, whose model of images is left out."""

from typing import Any

import torch

from tests.support.configs.hy_v4 import HY_V4
from tests.support.tiny_models import COMMON

_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "out_hidden_size": COMMON["hidden_size"],
    "patch_size": 4,
    "max_image_size": 16,
}
_LEFT_OUT = ("model_type", "rope_theta")
_TEXT: dict[str, Any] = {name: value for name, value in HY_V4.items() if name not in _LEFT_OUT} | {
    "pad_token_id": None,  # so that no token's embedding is 0, for which an indexer could choose any positions
    "attention_bias": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
}
SEEING: dict[str, dict[str, Any]] = {
    "hy_v4_vl": {
        "model_type": "hy_v4_vl",
        "text_config": _TEXT,
        "vision_config": _VISION
        | {
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_image_size": 20,
            "rms_norm_eps": 1e-3,
        },
        "image_token_id": 90,
        "video_token_id": 91,
    }
}
CONFIGS: dict[str, dict[str, Any]] = {
    "hy_v4_vl": {"model_type": "hy_v4_vl", "text_config": _TEXT, "vision_config": _VISION}
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import HYV4VLConfig, HYV4VLForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = HYV4VLForConditionalGeneration(HYV4VLConfig(**values))
    del whole.model.vision_tower
    for name, tensor in whole.named_parameters():
        if name.endswith(("sinks", "base", "scale")):  # made alike, which would hide them
            torch.nn.init.normal_(tensor, std=0.5)
    return whole.float().eval()
