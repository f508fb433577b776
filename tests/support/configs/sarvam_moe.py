"""Tiny configs of Sarvam 30B, as transformers saves them and under the names of published checkpoints."""

from tests.support.tiny_models import COMMON

SARVAM = COMMON | {
    "model_type": "sarvam_moe",
    "head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "intermediate_size": 48,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
}
_PUBLISHED = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
CONFIGS = {
    "sarvam_moe": SARVAM,
    "sarvam_moe as published, one group, no norms of heads": {_PUBLISHED.get(n, n): v for n, v in SARVAM.items()}
    | {"n_group": 1, "topk_group": 1, "use_qk_norm": False},
}
