"""Tiny configs of Aria: whole checkpoints, whose model of images is left out."""

from typing import Any

from tests.support.tiny_models import COMMON

ARIA: dict[str, Any] = {
    "model_type": "aria",
    "text_config": COMMON
    | {"pad_token_id": None, "intermediate_size": 24, "moe_num_experts": 8, "moe_topk": 3, "moe_num_shared_experts": 2},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "aria": ARIA,
    "aria biased, one shared": ARIA
    | {"text_config": ARIA["text_config"] | {"attention_bias": True, "moe_num_shared_experts": 1}},
    "aria gelu in shared experts": ARIA | {"text_config": ARIA["text_config"] | {"hidden_act": "gelu"}},
}
_VISION = {
    "model_type": "idefics3_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import AriaConfig, AriaForConditionalGeneration

    values = {key: value for key, value in config.items() if key not in ("model_type", "vision_config")}
    whole: Any = AriaForConditionalGeneration(AriaConfig(**values, vision_config=_VISION))
    del whole.model.vision_tower, whole.model.multi_modal_projector
    return whole.float().eval()
