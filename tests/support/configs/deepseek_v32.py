"""Tiny configs of DeepSeek-V3.2, which see more positions than they attend to, and fewer."""

from tests.support.configs.deepseek_v2 import YARN
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3

DEEPSEEK_V32 = DEEPSEEK_V3 | {"model_type": "deepseek_v32", "index_n_heads": 16, "index_head_dim": 12, "index_topk": 6}
CONFIGS = {
    "deepseek_v32": DEEPSEEK_V32,
    "deepseek_v32 more than the context, listed layers, biased": DEEPSEEK_V32
    | {
        "index_topk": 200,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "attention_bias": True,
        "norm_topk_prob": False,
        "rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
