"""Tiny configs of SmolLM3."""

from tests.support.tiny_models import COMMON

SMOLLM3 = COMMON | {
    "model_type": "smollm3",
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "pad_token_id": 2,
}
CONFIGS = {
    "smollm3": SMOLLM3,
    "smollm3 untied, biased, windows": SMOLLM3
    | {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 7,
    },
}
