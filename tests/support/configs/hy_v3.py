"""Tiny configs of Hunyuan 3."""

from tests.support.tiny_models import COMMON

HY3 = COMMON | {
    "model_type": "hy_v3",
    "head_dim": 24,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 1,
    "router_scaling_factor": 2.826,
}
CONFIGS = {
    "hy_v3": HY3,
    "hy_v3 listed layers, biased, tied": HY3
    | {"mlp_layer_types": ["sparse", "dense", "sparse"], "attention_bias": True, "tie_word_embeddings": True},
}
