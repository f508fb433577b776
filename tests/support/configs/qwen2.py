"""Tiny configs of Qwen2."""

from tests.support.tiny_models import COMMON

QWEN2 = COMMON | {"model_type": "qwen2", "intermediate_size": 96}
CONFIGS = {
    "qwen2": QWEN2,
    "qwen2 tied, windows": QWEN2
    | {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
}
