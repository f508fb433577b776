"""Tiny configs of LFM2 MoE."""

from tests.support.tiny_models import COMMON

LFM2 = COMMON | {
    "model_type": "lfm2_moe",
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "num_dense_layers": 1,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "lfm2_moe": LFM2,
    "lfm2_moe biased convolutions, scaled, no correction": LFM2
    | {
        "conv_bias": True,
        "conv_L_cache": 4,
        "num_dense_layers": 0,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.7,
        "use_expert_bias": False,
        "tie_word_embeddings": False,
    },
}
