"""Tiny configs of GLM-4.5."""

from tests.support.tiny_models import COMMON

GLM4 = COMMON | {
    "model_type": "glm4_moe",
    "head_dim": 24,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "use_qk_norm": True,
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
}
CONFIGS = {
    "glm4_moe": GLM4,
    "glm4_moe air, groups": GLM4
    | {"use_qk_norm": False, "routed_scaling_factor": 1.0, "n_group": 2, "topk_group": 1, "norm_topk_prob": False},
}
