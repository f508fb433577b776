"""Tiny configs of DBRX, which transformers computes clipped alone."""

from typing import Any

from tests.support.tiny_models import COMMON

_KEPT = ("vocab_size", "bos_token_id", "eos_token_id", "initializer_range", "tie_word_embeddings")
DBRX: dict[str, Any] = {name: COMMON[name] for name in _KEPT} | {
    "model_type": "dbrx",
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 3,
    "max_position_embeddings": 256,
    "attn_config": {"clip_qkv": 0.8, "kv_n_heads": 2, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 3},
}
CONFIGS = {
    "dbrx": DBRX,
    "dbrx weights not normalised, as many keys as queries": DBRX
    | {
        "attn_config": DBRX["attn_config"] | {"kv_n_heads": 4},
        "ffn_config": DBRX["ffn_config"] | {"moe_normalize_expert_weights": None, "ffn_act_fn": {"name": "gelu"}},
    },
}
