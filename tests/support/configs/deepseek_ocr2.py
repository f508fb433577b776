"""Tiny configs of DeepSeek-OCR 2: whole checkpoints, whose model of images is left out."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = COMMON | {
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_ocr2": {"model_type": "deepseek_ocr2", "text_config": _TEXT},
    "deepseek_ocr2 groups": {
        "model_type": "deepseek_ocr2",
        "text_config": _TEXT | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import DeepseekOcr2Config, DeepseekOcr2ForConditionalGeneration
    from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

    made = DeepseekOcr2Config(**{key: value for key, value in config.items() if key != "model_type"})
    with torch.device("meta"):
        whole: Any = DeepseekOcr2ForConditionalGeneration(made)
    del whole.model.vision_tower, whole.model.multi_modal_projector, whole.model.view_separator
    text: Any = made.text_config
    whole.model.language_model = DeepseekOcr2TextModel(text)
    whole.lm_head = torch.nn.Linear(text.hidden_size, text.vocab_size, bias=False)
    return whole.float().eval()
