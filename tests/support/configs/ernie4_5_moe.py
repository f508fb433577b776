"""Tiny configs of ERNIE 4.5."""

from tests.support.tiny_models import COMMON

ERNIE = COMMON | {
    "model_type": "ernie4_5_moe",
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "moe_num_experts": 8,
    "moe_k": 3,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "ernie4_5_moe": ERNIE,
    "ernie4_5_moe biased, small sums": ERNIE | {"use_bias": True, "moe_norm_min": 0.6, "moe_layer_start_index": 2},
    "ernie4_5_moe untied, dense layers, nothing shared": ERNIE
    | {
        "tie_word_embeddings": False,
        "moe_num_shared_experts": 0,
        "num_hidden_layers": 5,
        "moe_layer_interval": 2,
        "moe_layer_end_index": 3,
        "moe_layer_start_index": 0,
    },
}
