"""Tiny configs of Muse Spark: whole checkpoints, whose model of sound the plan ignores."""

from typing import Any

from tests.support.tiny_models import COMMON

_TEXT: dict[str, Any] = {name: value for name, value in COMMON.items() if name != "rope_theta"} | {
    "model_type": "muse_spark_text",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "moe_hidden_size": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": 9,
    "output_multiplier": 0.8,  # so that experts are not chosen by the last bits of their scores
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
_AUDIO = {
    "patch_sizes": [2, 2],
    "hidden_sizes": [8, 8],
    "depths": [1, 1],
    "num_hidden_layers": 2,
    "out_hidden_size": COMMON["hidden_size"],
}
MUSE: dict[str, Any] = {
    "model_type": "muse_spark",
    "text_config": _TEXT,
    "vision_config": _VISION,
    "audio_config": _AUDIO,
    "out_hidden_size": 64,
    "projector_hidden_size": 16,
}
SEEING: dict[str, dict[str, Any]] = {
    "muse_spark": MUSE
    | {
        "vision_config": {
            "patch_size": 4,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
            "hidden_size": 32,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "intermediate_size": 40,
            "layer_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        },
        "out_hidden_size": 128,
        "projector_hidden_size": 24,
        "image_token_id": 90,
    }
}
SEEING["muse_spark kinds of blocks, a larger square"] = SEEING["muse_spark"] | {
    "vision_config": SEEING["muse_spark"]["vision_config"]
    | {
        "pos_emb_height": 6,
        "pos_emb_width": 6,
        "num_hidden_layers": 3,
        "patch_temporal": 1,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_types": ["full_attention", "window_attention", "window_attention"],
    }
}
CONFIGS: dict[str, dict[str, Any]] = {
    "muse_spark": MUSE,
    "muse_spark dense layers, scaled": MUSE
    | {
        "text_config": _TEXT
        | {
            "num_hidden_layers": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "layer_rope_theta": [10000.0, 0, 0, 10000.0],
            "routed_scaling_factor": 1.5,
            "residual_gate_temperature": 0.7,
            "qk_scale_factor": 2.0,
            "output_multiplier": 0.5,
            "final_logit_softcapping": 3.0,
        }
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers' model, less what sees and hears."""
    import transformers

    values = {key: value for key, value in config.items() if key != "model_type"}
    whole: Any = transformers.MuseSparkForConditionalGeneration(transformers.MuseSparkConfig(**values)).float().eval()
    for name in ("vision_tower", "vision_adapter", "vision_projection", "audio_tower"):
        delattr(whole.model, name)
    return whole
