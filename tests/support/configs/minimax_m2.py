"""Tiny configs of MiniMax-M2."""

from tests.support.tiny_models import COMMON

MINIMAX = COMMON | {
    "model_type": "minimax_m2",
    "head_dim": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "intermediate_size": 32,
    "rotary_dim": 12,
}
CONFIGS = {
    "minimax_m2": MINIMAX,
    "minimax_m2 tied, whole heads rotated": MINIMAX | {"tie_word_embeddings": True, "rotary_dim": 24},
}
