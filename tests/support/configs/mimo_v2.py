"""Tiny configs of MiMo-V2.5 and V2.6, as published: transformers has their blocks, under other names of the fields."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from tests.support.configs.mimo_v2_flash import MIMO
from tests.support.tiny_models import COMMON, transformers_model

_RENAMED = ("layer_types", "mlp_layer_types", "sliding_window")
MIMO_V2: dict[str, Any] = {name: value for name, value in MIMO.items() if name not in _RENAMED} | {
    "model_type": "mimo_v2",
    "layernorm_epsilon": 1e-6,
    "rope_theta": 1e7,
    "swa_rope_theta": 1e4,
    "partial_rotary_factor": 0.334,
    "hybrid_layer_pattern": [0, 1, 1],
    "moe_layer_freq": [0, 1, 1],
    "sliding_window": 6,
    "sliding_window_size": 6,
    "attention_value_scale": 0.612,
    "swa_num_attention_heads": COMMON["num_attention_heads"],
    "swa_num_key_value_heads": 2 * COMMON["num_key_value_heads"],
    "swa_head_dim": MIMO["head_dim"],
    "swa_v_head_dim": MIMO["v_head_dim"],
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_projection_layout": "split",
    "moe_router_dtype": "bfloat16",
    "n_shared_experts": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
_TOWER = {
    "vision_config": {
        "depth": 5,
        "hidden_size": 24,
        "intermediate_size": 20,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "qk_channels": 8,
        "out_hidden_size": COMMON["hidden_size"],
        "patch_size": 4,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "visual_token_window_size": 9,
        "use_sink": True,
        "fullatt_block_indexes": [0, 4],
        "vit_window_attn_types": [-1, 0, 1, 1, -1],
    },
    "image_token_id": 90,
    "vision_start_token_id": 91,
    "vision_end_token_id": 92,
}
SEEING: dict[str, dict[str, Any]] = {"mimo_v2": MIMO_V2 | _TOWER}
SEEING_FILES: dict[str, dict[str, Any]] = {  # as GGUF files tell of them
    "mimo_v2_flash": MIMO | _TOWER | {"routed_scaling_factor": 1.0}
}
CONFIGS = {
    "mimo_v2": MIMO_V2,
    "mimo_v2 as many heads of keys in windows, values as they are": MIMO_V2
    | {"swa_num_key_value_heads": COMMON["num_key_value_heads"], "attention_value_scale": None}
    | {"rope_scaling": {"rope_type": "default", "type": "default"}},  # V2.5
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers' MiMo-V2-Flash, saved with the config as published."""
    thetas = {"full_attention": config["rope_theta"], "sliding_attention": config["swa_rope_theta"]}
    rotated = config["partial_rotary_factor"]
    layers, ropes = ("hybrid_layer_pattern", "moe_layer_freq"), ("rope_theta", "swa_rope_theta", "rope_scaling")
    same = (*layers, *ropes, "partial_rotary_factor")
    whole = transformers_model(
        {name: value for name, value in config.items() if name not in same}
        | {
            "model_type": "mimo_v2_flash",
            "rms_norm_eps": config["layernorm_epsilon"],
            "layer_types": [("full_attention", "sliding_attention")[each] for each in config["hybrid_layer_pattern"]],
            "mlp_layer_types": [("dense", "sparse")[each] for each in config["moe_layer_freq"]],
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": rotated}
                for kind, theta in thetas.items()
            },
        }
    )
    heads = config["swa_num_key_value_heads"]
    for layer, windowed in zip(whole.model.layers, config["hybrid_layer_pattern"], strict=True):
        own = layer.self_attn
        if windowed and own.num_key_value_groups != config["num_attention_heads"] // heads:
            own.num_key_value_groups = config["num_attention_heads"] // heads
            for name, size in (("k_proj", config["head_dim"]), ("v_proj", config["v_head_dim"])):
                made = nn.Linear(config["hidden_size"], heads * size, bias=False)
                nn.init.normal_(made.weight, std=config["initializer_range"])
                setattr(own, name, made)
    save = whole.save_pretrained

    def as_published(folder: Path) -> None:
        save(folder)
        (folder / "config.json").write_text(json.dumps(config))

    whole.save_pretrained = as_published
    return whole
