"""Tiny configs of GLM-5.3-Flash: whole checkpoints, and those of which the tower is read."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON, without_vision

_TEXT: dict[str, Any] = {
    name: value for name, value in COMMON.items() if name not in ("rope_theta", "num_key_value_heads")
} | {
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "pad_token_id": 0,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "indexer_types": ["full", "full", "full", "full"],
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 0,
    "v_head_dim": 12,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
    "index_n_heads": 16,  # few would leave pools that are worth nothing, of which it is open which are chosen
    "index_head_dim": 12,
    "index_topk": 6,
    "index_kpool": 3,
    "linear_head_dim": 16,
    "linear_num_heads": 4,  # which the converter of GGUF files knows alone
    "linear_conv_kernel_dim": 3,
    "linear_lower_bound": -4.0,
    "hc_mult": 3,
    "hc_eps": 1e-3,
    "hc_sinkhorn_iters": 4,
    "rms_norm_eps": 1e-4,
    "swiglu_limit": 0.5,
}
_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "out_hidden_size": 64,
    "projection_intermediate_size": 16,
}
_IDS = {
    f"{name}_token_id": 90 + i
    for i, name in enumerate(("image", "video", "image_start", "image_end", "video_start", "video_end"))
}
GLM5_NEXT: dict[str, Any] = {"model_type": "glm5_next", "text_config": _TEXT, "vision_config": _VISION, **_IDS}
SEEING: dict[str, dict[str, Any]] = {
    "glm5_next": GLM5_NEXT
    | {
        "vision_config": _VISION
        | {"depth": 2, "patch_size": 8, "intermediate_size": 24, "swiglu_limit": 0.3, "initializer_range": 0.3}
    },
    "glm5_next unbiased, three patches a side": GLM5_NEXT
    | {
        "vision_config": _VISION
        | {"patch_size": 4, "spatial_merge_size": 3, "attention_bias": False, "initializer_range": 0.2}
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "glm5_next": GLM5_NEXT,
    "glm5_next more than the context, unbounded decays, biased": GLM5_NEXT
    | {
        "text_config": _TEXT
        | {"index_topk": 240, "linear_lower_bound": None, "attention_bias": True, "norm_topk_prob": False, "n_group": 1}
        | {"linear_num_heads": 3}
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    model = without_vision("Glm5Next", config)
    for name, tensor in model.named_parameters():
        if name.endswith(("base", "scale", "ape", "compress_gate")):  # made alike, which would hide them
            torch.nn.init.normal_(tensor, std=0.5)
    return model
