"""Tiny configs of dots 3 Note: windows shorter than the prompt, with sizes of their own."""

from typing import Any

import torch

from tests.support.tiny_models import COMMON

DOTS3_NOTE: dict[str, Any] = {
    name: value for name, value in COMMON.items() if name not in ("rope_theta", "num_hidden_layers")
} | {
    "model_type": "dots3_note",
    "num_hidden_layers": 4,
    "pad_token_id": None,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "shared_experts_intermediate_size": 20,
    "n_shared_experts": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "q_lora_rank": 28,
    "kv_lora_rank": 20,
    "head_dim": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "index_n_heads": 16,
    "index_head_dim": 12,
    "index_topk": 6,
    "sliding_window": 7,
    "layer_types": ["indexed_attention", "sliding_attention", "indexed_attention", "sliding_attention"],
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 24,
    "swa_kv_lora_rank": 36,
    "swa_head_dim": 18,
    "swa_qk_nope_head_dim": 14,
    "swa_v_head_dim": 10,
    "swa_rope_theta": 500.0,
}
_SWA = {name.removeprefix("swa_"): value for name, value in DOTS3_NOTE.items() if name.startswith("swa_")}
_SIZES = {name: value for name, value in _SWA.items() if name != "rope_theta"} | {"qk_rope_head_dim": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "dots3_note": DOTS3_NOTE,
    "dots3_note as transformers saves it, groups, biased, one layer sees all": {
        "model_type": "dots3_note",
        "text_config": {
            name: value for name, value in DOTS3_NOTE.items() if not name.startswith("swa_") and name != "model_type"
        }
        | {
            "layer_types": ["full_attention", "sliding_attention", "indexed_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
            "per_layer_config": {"1": _SIZES, "3": _SIZES},
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                "indexed_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "attention_bias": True,
        },
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers' language model."""
    from transformers import Dots3NoteForCausalLM, Dots3NoteTextConfig

    text = config.get("text_config") or config
    values = {key: value for key, value in text.items() if key != "model_type"}
    model: Any = Dots3NoteForCausalLM(Dots3NoteTextConfig(**values))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    return model.float().eval()
