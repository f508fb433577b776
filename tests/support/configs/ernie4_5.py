"""Tiny configs of ERNIE 4.5 without experts."""

from tests.support.tiny_models import COMMON

ERNIE = COMMON | {"model_type": "ernie4_5", "intermediate_size": 96, "head_dim": 24, "tie_word_embeddings": True}
CONFIGS = {"ernie4_5": ERNIE, "ernie4_5 untied, biased": ERNIE | {"tie_word_embeddings": False, "use_bias": True}}
