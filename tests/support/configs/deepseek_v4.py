"""Tiny configs of DeepSeek-V4: a prompt has entries of all kinds, and more of those that are chosen than are."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON, transformers_model

DEEPSEEK_V4: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"} | {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "sliding_window": 5,
    "index_n_heads": 16,  # few would leave entries that are worth nothing, of which it is open which are chosen
    "index_head_dim": 12,
    "index_topk": 3,
    "layer_types": [
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "sliding_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 6},
    "compress_rope_theta": 3000.0,
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-3,
    "rms_norm_eps": 1e-4,
    "swiglu_limit": 0.6,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek_v4 as published, yarn, no table": {
        name: value
        for name, value in DEEPSEEK_V4.items()
        if name not in ("layer_types", "mlp_layer_types", "compress_rates", "partial_rotary_factor")
    }
    | {
        "compress_ratios": [0, 4, 128, 4, 0],
        "num_hash_layers": 0,
        "qk_rope_head_dim": 8,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4,
            "original_max_position_embeddings": 64,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "tie_word_embeddings": True,
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    model = transformers_model(config)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("sinks", "base", "position_bias")):  # made of zeros, which would hide them
            torch.nn.init.normal_(tensor, std=0.5)
        if name.endswith("tid2eid"):
            tensor.copy_(torch.rand(len(tensor), model.config.n_routed_experts).topk(tensor.shape[1]).indices)
    return model
