"""Tiny configs of Inkling: whole checkpoints, whose models of images and sound are left out."""

from typing import Any

import torch

_TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "unpadded_vocab_size": 93,
    "hidden_size": 64,
    "num_hidden_layers": 3,
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
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "conv_kernel_size": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "route_scale": 2.0,
    "logits_mup_width_multiplier": 0.5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
    "num_mtp_layers": 1,
}
_SEEN = {"n_layers": 5, "patch_size": 12, "temporal_patch_size": 2}
INKLING: dict[str, Any] = {"model_type": "inkling_mm_model", "text_config": _TEXT}
_AUDIO = {"n_mel_bins": 4, "mel_vocab_size": 8}
SEEING: dict[str, dict[str, Any]] = {
    "inkling_mm_model": INKLING | {"vision_config": _SEEN, "audio_config": _AUDIO, "image_token_id": 90},
    "inkling_mm_model more layers than scales": INKLING
    | {"vision_config": _SEEN | {"n_layers": 7, "patch_size": 8}, "audio_config": _AUDIO, "image_token_id": 90},
}
_LISTED = ("layer_types", "mlp_layer_types", "moe_intermediate_size", "log_scaling_n_floor", "unpadded_vocab_size")
CONFIGS: dict[str, dict[str, Any]] = {
    "inkling_mm_model": INKLING,
    "inkling_mm_model as published, not scaled": INKLING
    | {
        "text_config": {name: value for name, value in _TEXT.items() if name not in _LISTED}
        | {
            "local_layer_ids": [0, 1],
            "dense_mlp_idx": 1,
            "dense_intermediate_size": 48,
            "intermediate_size": 24,
            "n_shared_experts": 1,
            "conv_kernel_size": 3,
        }
    },
}
_VISION = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "patch_size": 4}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its models of images and sound."""
    from transformers import InklingConfig, InklingForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = InklingForConditionalGeneration(InklingConfig(**values, vision_config=_VISION, audio_config=_AUDIO))
    whole.float().eval()
    del whole.model.vision_tower, whole.model.audio_tower
    for name, parameter in whole.named_parameters():
        if name.endswith(("global_scale", "conv1d.weight")):
            torch.nn.init.uniform_(parameter, 0.3, 1.2)
    return whole
