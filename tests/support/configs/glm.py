"""Tiny configs of GLM-4-9B."""

from tests.support.tiny_models import COMMON

GLM = COMMON | {
    "model_type": "glm",
    "intermediate_size": 96,
    "head_dim": 16,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "pad_token_id": 2,
}
CONFIGS = {"glm": GLM, "glm wide heads": GLM | {"head_dim": 24}}
