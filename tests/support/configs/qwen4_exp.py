"""Tiny configs of Qwen3.8-Flash-Next: whole checkpoints, one of which the tower is read, and the part alone."""

from typing import Any

import torch

from tests.support.configs.qwen3_5_moe import _IDS, _VISION
from tests.support.tiny_models import COMMON, transformers_model, without_vision

_TEXT: dict[str, Any] = {
    name: value for name, value in COMMON.items() if name not in ("rope_theta", "num_hidden_layers")
} | {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],  # as published
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "rms_norm_eps": 1e-4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
    "hc_count": 3,
    "hc_lowrank": 24,
    "output_gate_type": "sigmoid",
    "ple_layer_ids": [1],
    "ple_embed_dim": 48,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 101,
    "make_ngram_vocab_size_divisible_by": 16,
    "split_ngram_parts": 3,
    "indexer_n_heads": 24,  # few would leave blocks that are worth nothing, of which it is open which are chosen
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 12,
    "indexer_compress_ratio": 4,
    "eos_token_id": 41,  # which the prompt of the tests has in it
}
QWEN4: dict[str, Any] = {"model_type": "qwen4_exp", "text_config": _TEXT, "vision_config": _VISION, **_IDS}
SEEING: dict[str, dict[str, Any]] = {"qwen4_exp": QWEN4 | {"vision_config": _VISION | {"depth": 2, "patch_size": 8}}}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen4_exp": QWEN4,
    "qwen4_exp language model alone, two tables of n-grams": {
        "model_type": "qwen4_exp",
        **_TEXT,
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "full_attention"],
        "tie_word_embeddings": True,
        "output_gate_type": None,
        "ple_layer_ids": [1, 3],
        "norm_topk_prob": False,
        "attention_bias": True,
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    if "text_config" in config:
        model = without_vision("Qwen4Exp", config)
    else:
        model = transformers_model(config | {"model_type": "qwen4_exp_text"})
    for name, parameter in model.named_parameters():
        if name.endswith("ple.conv1d.weight"):  # made of zeros, which would hide it
            torch.nn.init.normal_(parameter, std=0.5)
    return model
