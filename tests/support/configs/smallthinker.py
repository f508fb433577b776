"""Tiny configs of SmallThinker."""

from tests.oracles.decoders.routed_before import SmallThinkerReference
from tests.support.tiny_models import COMMON

SMALLTHINKER = COMMON | {
    "model_type": "smallthinker",
    "head_dim": 24,
    "rms_norm_eps": 1e-6,
    "rope_layout": [0, 1, 1],
    "sliding_window_layout": [0, 1, 1],
    "sliding_window_size": 9,
    "moe_num_primary_experts": 8,
    "moe_num_active_primary_experts": 3,
    "moe_ffn_hidden_size": 32,
    "moe_primary_router_apply_softmax": False,
    "norm_topk_prob": True,
}
CONFIGS = {
    "smallthinker": SMALLTHINKER,
    "smallthinker softmax, tied, layouts that differ": SMALLTHINKER
    | {
        "moe_primary_router_apply_softmax": True,
        "tie_word_embeddings": True,
        "rope_layout": [1, 0, 1],
        "sliding_window_layout": [1, 0, 0],
    },
}
REFERENCE = SmallThinkerReference
