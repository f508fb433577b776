"""Tiny configs of FlexOlmo."""

from tests.support.configs.olmoe import OLMOE

FLEX = OLMOE | {"model_type": "flex_olmo", "num_experts_per_tok": 3, "norm_topk_prob": False, "pad_token_id": 2}
CONFIGS = {"flex_olmo": FLEX, "flex_olmo normalised, biased": FLEX | {"norm_topk_prob": True, "attention_bias": True}}
