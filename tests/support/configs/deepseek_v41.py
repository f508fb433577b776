"""Tiny configs of DeepSeek-V4.1: entries that several layers share, candidates, and tables of n-grams."""

from typing import Any

from tests.oracles.deepseek_v41 import DeepseekV41Reference
from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"} | {
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "head_dim": 40,  # whose rows are in no blocks, so that nothing is rounded
    "qk_rope_head_dim": 8,
    "q_lora_rank": 24,
    "o_groups": 2,
    "o_lora_rank": 12,
    "sliding_window": 5,
    "compress_rope_theta": 3000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "compress_ratios": [0, 2, 2, 1, 1, 1, 1, 0],  # the last one of an MTP layer
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 4, 6],
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 3,
    "candidate_block_size": 2,
    "index_n_heads": 16,  # few would leave entries that are worth nothing, of which it is open which are chosen
    "index_head_dim": 12,
    "index_topk": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-3,
    "rms_norm_eps": 1e-20,
    "swiglu_limit": 0.6,
    "engram_layer_ids": [1, 4],
    "engram_num_embeddings": [960, 1080],
    "engram_vocab_size": 101,
    "engram_max_ngram_size": 4,
    "engram_n_heads": 2,
    "engram_head_dim": 8,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 40,
    "engram_token_map": [token % 40 for token in range(97)],
    "num_nextn_predict_layers": 1,
}
DEEPSEEK_V41: dict[str, Any] = {
    "model_type": "deepseek_v41",
    "text_config": _TEXT | {"model_type": "deepseek_v41_text"},
    "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 2, "hidden_size": 16},
    "image_token_id": 96,
}
_VISION: dict[str, Any] = {
    "num_hidden_layers": 3,
    "hidden_size": 48,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "patch_size": 4,
    "rope_theta": 5000.0,
    "downsample_ratio": 3,
    "max_image_tokens": 100,
    "min_pixels": 16,
    "max_wh_ratio": None,
}
SEEING: dict[str, dict[str, Any]] = {"deepseek_v41": DEEPSEEK_V41 | {"vision_config": _VISION}}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v41": DEEPSEEK_V41,
    "deepseek_v41 language model alone, rounded rows, no table, fewer candidates than are chosen": {
        **_TEXT,
        "model_type": "deepseek_v41",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "index_head_dim": 32,
        "compress_ratios": [2, 0, 2, 2],
        "kv_source_layer_ids": [0],
        "index_source_layer_ids": [0, 3],
        "candidate_source_layer_id": 0,
        "candidate_topk_blocks": 1,
        "rope_scaling": None,
        "engram_layer_ids": [],
        "engram_num_embeddings": [],
        "engram_token_map": None,
    },
    "deepseek_v41 no candidates": {
        **_TEXT,
        "model_type": "deepseek_v41",
        "num_hidden_layers": 3,
        "compress_ratios": [1, 1, 1],
        "kv_source_layer_ids": [0],
        "index_source_layer_ids": [0],
        "candidate_source_layer_id": -1,
        "engram_layer_ids": [0],
        "engram_num_embeddings": [960],
    },
}
REFERENCE = DeepseekV41Reference
