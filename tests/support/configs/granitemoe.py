"""Tiny configs of Granite-MoE."""

from tests.support.tiny_models import COMMON

GRANITE = COMMON | {
    "model_type": "granitemoe",
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 32,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "granitemoe": GRANITE,
    "granitemoe untied, biased, llama3 positions": GRANITE
    | {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}
