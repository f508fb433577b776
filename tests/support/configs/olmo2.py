"""Tiny configs of OLMo 2."""

from tests.support.tiny_models import COMMON

CONFIGS = {"olmo2": COMMON | {"model_type": "olmo2", "intermediate_size": 96}}
