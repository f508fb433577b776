"""Tiny configs of Mistral Large 4: whole checkpoints, whose model of images is left out."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {
    name: value for name, value in COMMON.items() if name not in ("rope_theta", "num_key_value_heads")
} | {
    "num_hidden_layers": 5,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "index_n_heads": 16,  # so that no two positions are worth the same
    "index_head_dim": 12,
    "index_topk": 6,
    "final_logit_softcapping": 5.0,
    "no_rope_layers": [1, 0, 1, 0, 1],
    "kv_source_layers": [0, 1, 0, 1, 4],
    "indexer_types": ["full", "shared", "full", "full", "shared"],
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.0,
    },
}
MISTRAL_LARGE4: dict[str, Any] = {"model_type": "mistral_large4", "text_config": _TEXT}
_LISTED = ("no_rope_layers", "kv_source_layers", "indexer_types", "rope_parameters")
CONFIGS: dict[str, dict[str, Any]] = {
    "mistral_large4": MISTRAL_LARGE4,
    "mistral_large4 nothing listed, groups, biased, two shared experts": MISTRAL_LARGE4
    | {
        "text_config": {name: value for name, value in _TEXT.items() if name not in _LISTED}
        | {
            "index_topk": 200,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "attention_bias": True,
            "mlp_layer_types": ["sparse", "sparse", "dense", "sparse", "dense"],
        }
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images; what it begins with nothing for is drawn."""
    from transformers import MistralLarge4Config, MistralLarge4ForConditionalGeneration

    vision = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = MistralLarge4ForConditionalGeneration(MistralLarge4Config(**values, vision_config=vision))
    del whole.model.vision_tower, whole.model.multi_modal_projector
    for name, parameter in whole.named_parameters():
        if name.endswith(("softmax_scaling.scale", "rotary_emb.alpha")):
            torch.nn.init.normal_(parameter, std=0.3)
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    return whole.float().eval()
