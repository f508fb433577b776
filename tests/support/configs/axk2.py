"""Tiny configs of A.X K2, which see more positions than they attend to."""

from tests.support.configs.deepseek_v32 import DEEPSEEK_V32

_LEFT_OUT = ("num_nextn_predict_layers", "first_k_dense_replace")
AXK2 = {name: value for name, value in DEEPSEEK_V32.items() if name not in _LEFT_OUT} | {
    "model_type": "axk2",
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "gated_norm_rank": 6,
}
CONFIGS = {
    "axk2": AXK2,
    "axk2 no groups, biased, weights not normalised": AXK2
    | {"n_group": None, "topk_group": None, "attention_bias": True, "norm_topk_prob": False},
    "axk2 one head": AXK2 | {"num_attention_heads": 1, "num_key_value_heads": 1},
}
