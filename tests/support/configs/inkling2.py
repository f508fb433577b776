"""Tiny configs of Inkling 2: whole checkpoints, whose model of images is left out."""

from typing import Any

import torch

_TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "unpadded_vocab_size": 93,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 1,
    "swa_head_dim": 32,
    "sliding_window_size": 7,
    "d_rel": 4,
    "rel_extent": 9,
    "log_scaling_n_floor": 5,
    "log_scaling_alpha": 0.3,
    "max_position_embeddings": 256,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
    "conv_kernel_size": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "route_scale": 2.0,
    "qk_l2_clip_threshold": 3.0,
    "rel_l2_clip_threshold": 1.0,
    "mlp_gate_softcap": 0.7,
    "mlp_up_softcap": 0.9,
    "final_logit_softcapping": 3.0,
    "n_layers_per_attn_res_block": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
INKLING2: dict[str, Any] = {"model_type": "inkling2", "text_config": _TEXT}
CONFIGS: dict[str, dict[str, Any]] = {
    "inkling2": INKLING2,
    "inkling2 sees all first, each layer a block": INKLING2
    | {
        "text_config": _TEXT
        | {
            "num_hidden_layers": 3,
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid"],
            "n_layers_per_attn_res_block": 1,
            "conv_kernel_size": 3,
            "final_logit_softcapping": 30.0,
            "num_experts_per_tok": 2,
        }
    },
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "projection_hidden_dim": 16,
    "posemb_grid_size": 4,
}


def drawn(whole: Any) -> Any:
    """The model, less its model of images, with numbers where it begins with zeros or ones."""
    whole.float().eval()
    del whole.model.vision_tower
    for name, parameter in whole.named_parameters():
        if name.endswith((".query", "norm.scale", "static_weight", "conv1d.weight")):
            torch.nn.init.normal_(parameter, 0.8 if name.endswith("scale") else 0.0, 0.4)
    return whole


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import Inkling2Config, Inkling2ForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    vision = VISION | {"text_hidden_size": values["text_config"].get("hidden_size", 4608)}
    return drawn(Inkling2ForConditionalGeneration(Inkling2Config(**values, vision_config=vision)))
