"""Tiny configs of GLM-4-0414."""

from tests.support.tiny_models import COMMON

CONFIGS = {
    "glm4": COMMON
    | {
        "model_type": "glm4",
        "intermediate_size": 96,
        "head_dim": 24,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "pad_token_id": 2,
    }
}
