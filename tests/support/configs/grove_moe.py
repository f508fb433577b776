"""Tiny configs of GroveMoE."""

from typing import Any

from tests.oracles.grove_moe import GroveMoeReference
from tests.support.tiny_models import COMMON, transformers_model

GROVE_MOE = COMMON | {
    "model_type": "grove_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "intermediate_size": 48,
    "head_dim": 24,
    "norm_topk_prob": True,
    "num_experts_per_group": 2,
    "parallel_expert_intermediate_size": 16,
    "expert_group_scale": 0.4,  # with the published 0.05 an error of theirs could hide
}
CONFIGS = {
    "grove_moe": GROVE_MOE,
    "grove_moe larger groups, dense layers": GROVE_MOE | {"num_experts_per_group": 4, "mlp_only_layers": [1]},
}


def REFERENCE(config: dict[str, Any]) -> GroveMoeReference:
    return GroveMoeReference(config, transformers_model(config | {"model_type": "qwen3_moe"}))
