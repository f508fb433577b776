"""Tiny configs of Gemma."""

from tests.support.tiny_models import COMMON

GEMMA = COMMON | {
    "model_type": "gemma",
    "intermediate_size": 96,
    "head_dim": 24,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
CONFIGS = {"gemma": GEMMA, "gemma untied, biased": GEMMA | {"tie_word_embeddings": False, "attention_bias": True}}
