"""Tiny configs of Maple."""

from tests.oracles.decoders.bounded_gates import MapleReference
from tests.support.tiny_models import COMMON

MAPLE = COMMON | {
    "model_type": "maple",
    "hidden_act": "silu",
    "head_dim": 16,
    "initializer_range": 0.4,
    "rms_norm_eps": 1e-6,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_shared_experts": 0,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.5,
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "nope_on_global_attention": True,
    "use_qk_norm": True,
}
CONFIGS = {
    "maple": MAPLE,
    "maple whole heads turned, tied": MAPLE | {"partial_rotary_factor": 1.0, "tie_word_embeddings": True},
}
REFERENCE = MapleReference
