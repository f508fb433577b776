"""Tiny configs of Granite 4 H."""

from tests.support.configs.granitemoe import GRANITE

HYBRID = GRANITE | {
    "model_type": "granitemoehybrid",
    "shared_intermediate_size": 40,
    "rms_norm_eps": 1e-5,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
CONFIGS = {
    "granitemoehybrid": HYBRID,
    "granitemoehybrid positions, one group, untied": HYBRID
    | {
        "position_embedding_type": "rope",
        "mamba_n_groups": 1,
        "mamba_d_head": "auto",
        "mamba_d_conv": 3,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "tie_word_embeddings": False,
    },
}
