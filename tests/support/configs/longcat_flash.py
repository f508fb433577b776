"""Tiny configs of LongCat-Flash: of eleven experts three give back what they are given."""

from typing import Any

from tests.support.configs.deepseek_v2 import YARN
from tests.support.tiny_models import COMMON, transformers_model

_LEFT_OUT = ("num_hidden_layers", "num_key_value_heads")
LONGCAT: dict[str, Any] = {name: value for name, value in COMMON.items() if name not in _LEFT_OUT} | {
    "model_type": "longcat_flash",
    "num_layers": 2,
    "ffn_hidden_size": 48,
    "expert_ffn_hidden_size": 24,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "zero_expert_num": 3,
    "moe_topk": 4,
    "routed_scaling_factor": 2.5,
}
CONFIGS = {
    "longcat_flash": LONGCAT,
    "longcat_flash mostly experts that compute nothing, biased, yarn": LONGCAT
    | {"zero_expert_num": 24, "moe_topk": 3, "attention_bias": True, "rope_scaling": YARN},
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', of whose parameters those of experts that compute nothing do not count."""
    model = transformers_model(config)
    count = model.config.n_routed_experts
    kept = [p[:count] if name.endswith("gate_up_proj") else p for name, p in model.named_parameters()]
    model.parameters = lambda: iter(kept)
    return model
