"""Tiny configs of Kimi K2, which transformers reads as DeepSeek-V3."""

from typing import Any

from tests.support.configs.deepseek_v2 import YARN
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3
from tests.support.tiny_models import transformers_model

KIMI = DEEPSEEK_V3 | {
    "model_type": "kimi_k2",
    "num_nextn_predict_layers": 0,
    "rope_scaling": YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}
CONFIGS = {"kimi_k2": KIMI}


def REFERENCE(config: dict[str, Any]) -> Any:
    return transformers_model(config | {"model_type": "deepseek_v3"})
