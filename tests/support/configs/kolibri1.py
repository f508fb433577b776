"""Tiny configs of Kolibri: windows shorter than the prompt."""

from tests.support.tiny_models import COMMON

KOLIBRI1 = COMMON | {
    "model_type": "kolibri1",
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
CONFIGS = {
    "kolibri1": KOLIBRI1,
    "kolibri1 normalised, default layers": {name: v for name, v in KOLIBRI1.items() if name != "layer_types"}
    | {"norm_topk_prob": True, "num_hidden_layers": 5},
}
