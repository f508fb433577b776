"""Tiny configs of Nemotron 3 Omni: whole checkpoints, whose models that see and hear are left out."""

from typing import Any

from tests.support.configs.nemotron_h import NEMOTRON

_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "cpe_max_size": 16,
    "video_temporal_patch_size": 2,
}
OMNI: dict[str, Any] = {
    "model_type": "nemotron_h_omni",
    "text_config": NEMOTRON,
    "vision_config": _VISION,
    "vision_hidden_size": 16,
    "projector_hidden_size": 16,
}
SEEING: dict[str, dict[str, Any]] = {
    "nemotron_h_omni": OMNI
    | {
        "vision_config": {
            "model_type": "radio",
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "mlp_ratio": 1.5,
            "layer_norm_eps": 1e-3,
            "patch_size": 4,
            "max_img_size": 24,
            "num_cls_tokens": 2,
            "num_registers": 3,
            "video_temporal_patch_size": 2,
        },
        "vision_hidden_size": 32,
        "projector_hidden_size": 24,
        "image_token_id": 90,
    }
}
SEEING["nemotron_h_omni layers ahead, no biases"] = SEEING["nemotron_h_omni"] | {
    "text_config": NEMOTRON | {"num_nextn_predict_layers": 1},
    "vision_config": SEEING["nemotron_h_omni"]["vision_config"] | {"qkv_bias": False},
}
CONFIGS = {"nemotron_h_omni": OMNI}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import NemotronH_Omni_Reasoning_V3, NemotronH_Omni_Reasoning_V3_Config

    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = NemotronH_Omni_Reasoning_V3(NemotronH_Omni_Reasoning_V3_Config(**values))
    del whole.vision_model, whole.vision_final_layernorm, whole.multi_modal_projector
    return whole.float().eval()
