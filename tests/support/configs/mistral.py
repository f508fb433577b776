"""Tiny configs of Mistral."""

from tests.support.tiny_models import COMMON

CONFIGS = {"mistral": COMMON | {"model_type": "mistral", "intermediate_size": 96, "head_dim": 24, "sliding_window": 9}}
