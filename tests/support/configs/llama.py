"""Tiny configs of Llama."""

from tests.support.tiny_models import COMMON

LLAMA = COMMON | {"model_type": "llama", "intermediate_size": 96}
CONFIGS = {
    "llama": LLAMA,
    "llama tied, biased, llama3 positions": LLAMA
    | {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
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
