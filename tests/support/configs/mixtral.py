"""Tiny configs of Mixtral."""

from tests.support.tiny_models import COMMON

MIXTRAL = COMMON | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 96}
CONFIGS = {
    "mixtral": MIXTRAL,
    "mixtral sliding window, gelu": MIXTRAL | {"sliding_window": 9, "hidden_act": "quick_gelu"},
}
