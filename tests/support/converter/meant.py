"""What a GGUF file can tell of a config: some values have no place in it."""

from __future__ import annotations

import math
from typing import Any

# What no file says: the value that every published checkpoint has is taken.
UNSAID: dict[str, dict[str, Any]] = {
    "gpt_oss": {"swiglu_limit": 7.0},
    "phimoe": {"router_jitter_noise": 0.01},
    "afmoe": {"global_attn_every_n_layers": 4, "mup_enabled": True},
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4},
    "minimax_m3_vl": {"swiglu_limit": 7.0},
    "minimax": {  # one scale of all that is kept, and none of what layers add
        **{f"{kind}_alpha_factor": 1.5 for kind in ("full_attn", "linear_attn", "mlp")},
        **{f"{kind}_beta_factor": 1.0 for kind in ("full_attn", "linear_attn", "mlp")},
        "block_size": 256,  # of tables that files do not have
    },
    "mimo_v2_flash": {"routed_scaling_factor": 1.0},
    "glm": {"max_position_embeddings": 64, "rms_norm_eps": 1e-5},  # the converter's: the width, and an epsilon
}


def meant(config: dict[str, Any]) -> dict[str, Any]:
    """The config as a file can tell it."""
    unsaid = UNSAID.get(config["model_type"], {})
    config = config | ({"text_config": config["text_config"] | unsaid} if "text_config" in config else unsaid)
    config.pop("vision_config", None)  # what sees pictures has a file of its own
    if config["model_type"] == "qwen4_exp":
        config |= {"image_token_id": 248056}  # as published
    if config["model_type"] in ("granitemoehybrid", "nemotron_h"):
        config |= {"max_position_embeddings": 1 << 20}  # the converter's, where nothing is rotated
    no_plain_layers = config["model_type"] == "nemotron_h" and "mlp" not in config["layers_block_type"]
    if no_plain_layers or config["model_type"] == "solar_open":
        config |= {"intermediate_size": config["moe_intermediate_size"]}  # of layers that there are none of
    for name in ("rope_scaling", "rope_parameters"):
        rope = dict(config.get(name) or {})
        if "mscale_all_dim" in rope:
            rope |= {"mscale": rope["mscale_all_dim"]}
            config |= {name: rope}
        if "llama_4_scaling_beta" in rope:
            config |= {name: rope | {"llama_4_scaling_beta": 0.1}}
        if "short_mscale" in rope:
            trained, longest = rope["original_max_position_embeddings"], config["max_position_embeddings"]
            factor = math.sqrt(1 + math.log(longest / trained) / math.log(trained))
            config |= {name: rope | {"short_mscale": factor, "long_mscale": factor}}
    return config
