"""Tiny configs of MiniMax-M3: whole checkpoints, and one of which the tower is read."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "head_dim": 16,
    "rotary_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 24,
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 16,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 0.7,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 3,
    "index_topk_blocks": 2,
}
MINIMAX_M3: dict[str, Any] = {"model_type": "minimax_m3_vl", "text_config": _TEXT}
SEEING: dict[str, dict[str, Any]] = {
    "minimax_m3_vl": MINIMAX_M3
    | {
        "text_config": _TEXT | {"swiglu_limit": 7.0},  # that of GGUF files
        "vision_config": {
            "hidden_size": 40,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "patch_size": 4,
            "initializer_range": 0.2,
        },
        "projector_hidden_size": 28,
        "image_token_index": 90,
        "video_token_index": 91,
    }
}
_LISTED = ("mlp_layer_types", "layer_types", "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks")
CONFIGS: dict[str, dict[str, Any]] = {
    "minimax_m3_vl": MINIMAX_M3,
    "minimax_m3_vl as published, several blocks in front": MINIMAX_M3
    | {
        "text_config": {name: value for name, value in _TEXT.items() if name not in _LISTED}
        | {
            "hidden_act": "swigluoai",
            "shared_intermediate_size": 40,
            "moe_layer_freq": [1, 0, 1],
            "sparse_attention_config": {
                "sparse_num_index_heads": 2,
                "sparse_index_dim": 12,
                "sparse_block_size": 2,
                "sparse_topk_blocks": 3,
                "sparse_local_block": 2,
                "sparse_attention_freq": [1, 0, 1],
            },
        }
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
    }
    values = {key: value for key, value in config.items() if key != "model_type"}
    made = MiniMaxM3VLConfig(**values, vision_config=vision, projector_hidden_size=16)
    whole: Any = MiniMaxM3SparseForConditionalGeneration(made)
    whole.float().eval()
    del whole.model.vision_tower, whole.model.multi_modal_projector
    for name, parameter in whole.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return whole
