"""Tiny configs of StarCoder2."""

from tests.support.tiny_models import COMMON

STARCODER2 = COMMON | {"model_type": "starcoder2", "intermediate_size": 96, "tie_word_embeddings": True}
CONFIGS = {
    "starcoder2": STARCODER2,
    "starcoder2 unbiased, untied, sliding window": STARCODER2
    | {"use_bias": False, "tie_word_embeddings": False, "sliding_window": 7, "norm_epsilon": 1e-3},
}
