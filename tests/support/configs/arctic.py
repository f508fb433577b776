"""Tiny configs of Snowflake Arctic."""

from tests.oracles.arctic import ArcticReference
from tests.support.tiny_models import COMMON

ARCTIC = COMMON | {
    "model_type": "arctic",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "moe_layer_frequency": 1,
    "parallel_attn_mlp_res": True,
    "use_residual": True,
    "rms_norm_eps": 1e-5,
}
CONFIGS = {
    "arctic": ARCTIC,
    "arctic dense layers, sliding window": ARCTIC
    | {"moe_layer_frequency": 2, "num_hidden_layers": 4, "sliding_window": 9, "intermediate_size": 64},
    "arctic experts behind attention": ARCTIC | {"parallel_attn_mlp_res": False, "use_residual": False},
    "arctic one expert a token": ARCTIC | {"num_experts_per_tok": 1},
}
REFERENCE = ArcticReference
