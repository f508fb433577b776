"""Tiny configs of A.X K1."""

from tests.support.configs.deepseek_v3 import DEEPSEEK_V3

AXK1 = {name: value for name, value in DEEPSEEK_V3.items() if name != "num_nextn_predict_layers"} | {
    "model_type": "axk1"
}
CONFIGS = {
    "axk1": AXK1,
    "axk1 one group, halves rotated, listed layers": AXK1
    | {
        "n_group": 1,
        "topk_group": 1,
        "rope_interleave": False,
        "attention_bias": True,
        "norm_topk_prob": False,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
}
