"""Tiny configs of OLMoE."""

from tests.support.tiny_models import COMMON

OLMOE = COMMON | {"model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}
CONFIGS = {"olmoe": OLMOE, "olmoe clipped, normalised": OLMOE | {"clip_qkv": 0.9, "norm_topk_prob": True}}
