"""Tiny configs of DeepSeek's first mixture."""

from tests.oracles.decoders.shared_experts import DeepseekReference
from tests.support.tiny_models import COMMON

DEEPSEEK = COMMON | {
    "model_type": "deepseek",
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
    "rms_norm_eps": 1e-6,
}
CONFIGS = {
    "deepseek": DEEPSEEK,
    "deepseek every second layer, nothing shared, weights normalised": DEEPSEEK
    | {"first_k_dense_replace": 0, "moe_layer_freq": 2, "n_shared_experts": None, "norm_topk_prob": True},
}
REFERENCE = DeepseekReference
