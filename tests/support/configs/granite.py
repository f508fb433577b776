"""Tiny configs of Granite."""

from tests.support.tiny_models import COMMON

GRANITE = COMMON | {
    "model_type": "granite",
    "intermediate_size": 96,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "granite": GRANITE,
    "granite untied, biased": GRANITE | {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
}
