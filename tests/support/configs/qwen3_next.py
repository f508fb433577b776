"""Tiny configs of Qwen3-Next."""

from tests.support.tiny_models import COMMON

NEXT = COMMON | {
    "model_type": "qwen3_next",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "intermediate_size": 48,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "num_hidden_layers": 4,
    "full_attention_interval": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-4,  # not 1e-6: it would blow up what is left where random states cancel, in transformers too
}
CONFIGS = {
    "qwen3_next": NEXT,
    "qwen3_next tied, biased, weights not normalised": NEXT
    | {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "norm_topk_prob": False,
        "partial_rotary_factor": 0.5,
        "linear_num_value_heads": 2,
    },
    "qwen3_next dense layers, layer types": NEXT
    | {
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        "mlp_only_layers": [1],
        "linear_conv_kernel_dim": 2,
    },
}
