"""Tiny configs of GLM-4.7-Flash."""

from tests.support.configs.deepseek_v3 import DEEPSEEK_V3

GLM4_LITE = {name: value for name, value in DEEPSEEK_V3.items() if name != "first_k_dense_replace"} | {
    "model_type": "glm4_moe_lite",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
}
CONFIGS = {
    "glm4_moe_lite": GLM4_LITE,
    "glm4_moe_lite listed layers, groups, direct queries": GLM4_LITE
    | {
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": None,
        "rope_interleave": False,
        "attention_bias": True,
        "norm_topk_prob": False,
    },
}
