"""Tiny configs of Gemma 2."""

from tests.support.tiny_models import COMMON

GEMMA2 = COMMON | {
    "model_type": "gemma2",
    "intermediate_size": 96,
    "head_dim": 24,
    "query_pre_attn_scalar": 24,
    "sliding_window": 7,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "gemma2": GEMMA2,
    "gemma2 biased, untied, without caps": GEMMA2
    | {
        "layer_types": ["full_attention", "full_attention", "sliding_attention"],
        "attention_bias": True,
        "tie_word_embeddings": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "query_pre_attn_scalar": 20,
    },
}
