"""Tiny configs of Grok-1 and Grok-2."""

from tests.oracles.grok import GrokReference
from tests.support.tiny_models import COMMON

GROK = COMMON | {  # as Grok-2, with caps that scores reach
    "model_type": "grok",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "residual_moe": True,
    "head_dim": 24,
    "rms_norm_eps": 1e-5,
    "attn_logit_softcapping": 1.5,
    "router_logit_softcapping": 1.0,
    "final_logit_softcapping": 5.0,
    "embedding_multiplier_scale": 3.0,
    "output_multiplier_scale": 0.5,
    "attn_temperature_len": 1 << 20,
    "rope_type": "original",
    "scaling_factor": 16.0,
    "original_max_position_embeddings": 8192,
    "sliding_window_size": -1,
    "global_attn_every_n": 1,
}
GROK_1 = COMMON | {
    "model_type": "grok",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_attn_value": 1.2,
    "attn_output_multiplier": 0.3,
    "embedding_multiplier_scale": 3.0,
    "output_multiplier_scale": 0.7,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "grok": GROK,
    "grok the first, tied": GROK_1,
    "grok half of a head turns": GROK | {"rope_rotate_half_dims": True, "final_logit_softcapping": None},
}
REFERENCE = GrokReference
