"""Tiny configs of Hunyuan-A13B."""

from tests.support.tiny_models import COMMON

HUNYUAN = COMMON | {
    "model_type": "hunyuan_v1_moe",
    "head_dim": 24,
    "num_experts": 8,
    "moe_topk": 3,
    "intermediate_size": 32,
}
CONFIGS = {
    "hunyuan_v1_moe": HUNYUAN,
    "hunyuan_v1_moe alpha, tied, biased": HUNYUAN
    | {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0},
    },
}
