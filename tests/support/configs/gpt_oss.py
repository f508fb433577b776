"""Tiny configs of gpt-oss; the limit is one that activations of random weights reach."""

from tests.support.tiny_models import COMMON

GPT_OSS = COMMON | {
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 32,
    "head_dim": 24,
    "sliding_window": 9,
    "swiglu_limit": 1.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}
CONFIGS = {
    "gpt_oss": GPT_OSS,
    "gpt_oss full attention first, no biases": GPT_OSS
    | {"attention_bias": False, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
}
