"""Tiny configs of Mistral Small 4, whose prompts are longer than the length that it was trained with."""

from typing import Any

from tests.support.configs.deepseek_v3 import DEEPSEEK_V3

_LEFT_OUT = ("num_nextn_predict_layers", "rope_theta")
MISTRAL4 = {name: value for name, value in DEEPSEEK_V3.items() if name not in _LEFT_OUT} | {
    "model_type": "mistral4",
    "n_group": 1,
    "topk_group": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 12,
        "max_position_embeddings": 48,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.4,
    },
}
_VISION: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "hidden_act": "gelu",
    "patch_size": 4,
    "image_size": 64,
    "initializer_range": 0.2,
}
_WHOLE: dict[str, Any] = {
    "model_type": "mistral3",
    "text_config": MISTRAL4,
    "vision_config": _VISION,
    "image_token_index": 90,
    "spatial_merge_size": 2,
    "tie_word_embeddings": False,
}
SEEING: dict[str, dict[str, Any]] = {
    "mistral4": _WHOLE,
    "mistral4 three patches a side, biased, silu": _WHOLE
    | {
        "spatial_merge_size": 3,
        "multimodal_projector_bias": True,
        "projector_hidden_act": "silu",
        "vision_config": _VISION
        | {"hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}},
    },
}
CONFIGS = {
    "mistral4": MISTRAL4,
    "mistral4 groups, direct queries": MISTRAL4
    | {"n_group": 4, "topk_group": 2, "q_lora_rank": None, "norm_topk_prob": False, "attention_bias": True},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers' class, which no table of transformers names."""
    from transformers import Mistral4Config
    from transformers.models.mistral4 import Mistral4ForCausalLM

    values = {name: value for name, value in config.items() if name != "model_type"}
    model: Any = Mistral4ForCausalLM(Mistral4Config(**values))
    return model.float().eval()
