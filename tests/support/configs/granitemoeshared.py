"""Tiny configs of Granite MoE with shared experts."""

from tests.support.configs.granitemoe import GRANITE

SHARED = GRANITE | {"model_type": "granitemoeshared", "shared_intermediate_size": 40}
CONFIGS = {
    "granitemoeshared": SHARED,
    "granitemoeshared nothing shared, untied": SHARED | {"shared_intermediate_size": 0, "tie_word_embeddings": False},
}
