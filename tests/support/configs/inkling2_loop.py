"""Tiny configs of Inkling 2 with layers that run several times."""

from typing import Any

from tests.support.configs.inkling2 import INKLING2, VISION, drawn

_LOOP = {"loop_layer_index_start": 2, "loop_layer_index_end": 4, "loop_num_passes": 3, "loop_gate_rank": 12}
_TEXT: dict[str, Any] = INKLING2["text_config"] | {
    "initializer_range": 0.1,
    "num_hidden_layers": 5,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "inkling2_loop": {"model_type": "inkling2_loop", "text_config": _TEXT | _LOOP},
    "inkling2_loop as published, to the last layer": {
        "model_type": "inkling2_loop",
        "text_config": _TEXT
        | {
            "layer_types": ["hybrid", "hybrid_sliding", "hybrid_sliding", "hybrid", "hybrid_sliding"],
            "n_layers_per_attn_res_block": 1,
            "loop_config": {"core_start": 1, "core_end": 5, "num_passes": 2, "gate_rank": 8},
        },
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers', less its model of images."""
    from transformers import Inkling2LoopConfig, Inkling2LoopForConditionalGeneration

    values = {key: value for key, value in config.items() if key != "model_type"}
    hidden = values["text_config"].get("hidden_size", 2304)
    vision = VISION | {"model_type": "inkling2_vision", "text_hidden_size": hidden}
    return drawn(Inkling2LoopForConditionalGeneration(Inkling2LoopConfig(**values, vision_config=vision)))
