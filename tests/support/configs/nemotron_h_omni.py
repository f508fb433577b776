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
CONFIGS = {"nemotron_h_omni": OMNI}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import NemotronH_Omni_Reasoning_V3, NemotronH_Omni_Reasoning_V3_Config

    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = NemotronH_Omni_Reasoning_V3(NemotronH_Omni_Reasoning_V3_Config(**values))
    del whole.vision_model, whole.vision_final_layernorm, whole.multi_modal_projector
    return whole.float().eval()
