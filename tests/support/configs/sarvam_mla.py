"""Tiny configs of Sarvam 105B, as transformers saves them and under the names of published checkpoints."""

from typing import Any

from tests.support.configs.deepseek_v2 import YARN
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3

_LEFT_OUT = ("num_nextn_predict_layers", "num_key_value_heads")
SARVAM: dict[str, Any] = {name: value for name, value in DEEPSEEK_V3.items() if name not in _LEFT_OUT} | {
    "model_type": "sarvam_mla",
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
}
_PUBLISHED = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_SCALING = {name: value for name, value in YARN.items() if name != "rope_type"} | {"type": "deepseek_yarn"}
CONFIGS = {
    "sarvam_mla": SARVAM,
    "sarvam_mla as published, yarn": {_PUBLISHED.get(name, name): value for name, value in SARVAM.items()}
    | {"head_dim": 40, "rope_scaling": _SCALING},
}
