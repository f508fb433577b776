"""Tiny configs of Granite MoE with windows."""

from tests.support.configs.granitemoe import GRANITE

SWA = GRANITE | {"model_type": "granitemoe_swa", "shared_intermediate_size": 40, "sliding_window": 9}
CONFIGS = {
    "granitemoe_swa": SWA,
    "granitemoe_swa nothing shared, layers without positions": SWA
    | {
        "shared_intermediate_size": 0,
        "layer_rope_theta": [0, 10000.0, 0],
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
}
