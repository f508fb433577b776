"""Tiny configs of Gemma 3."""

from tests.support.tiny_models import COMMON

GEMMA3 = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "gemma3_text",
    "intermediate_size": 96,
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "sliding_window": 7,
    "num_hidden_layers": 6,  # of which the last sees all tokens
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    },
    "tie_word_embeddings": True,
}
CONFIGS = {
    "gemma3_text": GEMMA3,
    "gemma3_text biased, untied, capped": GEMMA3
    | {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "attention_bias": True,
        "tie_word_embeddings": False,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 20,
    },
}
