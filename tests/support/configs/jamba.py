"""Tiny configs of Jamba."""

from tests.support.tiny_models import COMMON

JAMBA = COMMON | {
    "model_type": "jamba",
    "num_hidden_layers": 4,
    "initializer_range": 0.15,  # with 0.2, rounding grows to 1e-4 over the four layers
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "mamba_d_state": 6,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 5,
    "rms_norm_eps": 1e-5,
}
CONFIGS = {
    "jamba": JAMBA,
    "jamba tied, no bias, experts in every layer, odd heads": JAMBA
    | {
        "hidden_size": 60,
        "tie_word_embeddings": True,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "mamba_dt_rank": "auto",
        "mamba_d_conv": 2,
        "expert_layer_period": 1,
        "expert_layer_offset": 0,
        "num_experts_per_tok": 3,
    },
}
