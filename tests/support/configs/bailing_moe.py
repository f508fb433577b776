"""Tiny configs of Ling and Ring."""

from tests.oracles.bailing import BailingReference
from tests.support.tiny_models import COMMON

LING = COMMON | {
    "model_type": "bailing_moe",
    "architectures": ["BailingMoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "norm_topk_prob": True,
    "moe_intermediate_size": 32,
    "intermediate_size": 48,
    "first_k_dense_replace": 0,
    "use_bias": False,
    "use_qkv_bias": False,
    "norm_head": False,
    "rms_norm_eps": 1e-5,
}
LING_2 = LING | {
    "architectures": ["BailingMoeV2ForCausalLM"],
    "head_dim": 24,
    "partial_rotary_factor": 0.5,
    "use_qk_norm": True,
    "first_k_dense_replace": 1,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "num_nextn_predict_layers": 0,
}
CONFIGS = {
    "bailing_moe": LING,
    "bailing_moe second generation": LING_2,
    "bailing_moe nothing shared, weights not normalised": LING | {"num_shared_experts": 0, "norm_topk_prob": False},
}
REFERENCE = BailingReference
