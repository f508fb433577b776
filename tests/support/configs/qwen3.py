"""Tiny configs of Qwen3."""

from tests.support.tiny_models import COMMON

QWEN3 = COMMON | {"model_type": "qwen3", "intermediate_size": 96, "head_dim": 24}
CONFIGS = {
    "qwen3": QWEN3,
    "qwen3 tied, biased, windows": QWEN3
    | {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
    },
}
