"""Tiny configs of Qwen3-Omni: the part of whole checkpoints that writes text, without those that see and hear."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.support.configs.qwen3_vl_moe import SEEING as SEEING_VL
from tests.support.configs.qwen3_vl_moe import TEXT as TEXT_OF_VL
from tests.support.configs.qwen3_vl_moe import VISION

_TEXT = {key: value for key, value in TEXT_OF_VL.items() if key not in ("eos_token_id", "bos_token_id")}
_ROPE = TEXT_OF_VL["rope_parameters"] | {"interleaved": True}  # as published, beside mrope_interleaved
_TEXT |= {"rope_parameters": _ROPE}
_VISION = {key: value for key, value in VISION.items() if key != "num_position_embeddings"}
_AUDIO = {
    "num_mel_bins": 8,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "d_model": 16,
    "downsample_hidden_size": 8,
    "output_dim": _TEXT["hidden_size"],
}
_IDS = {  # none of which is in the vocabulary
    "image_token_id": 100,
    "video_token_id": 101,
    "audio_token_id": 102,
    "vision_start_token_id": 103,
    "audio_start_token_id": 104,
}
_THINKER: dict[str, Any] = {"text_config": _TEXT, "vision_config": _VISION, "audio_config": _AUDIO, **_IDS}
OMNI: dict[str, Any] = {"model_type": "qwen3_omni_moe", "thinker_config": _THINKER}
SEEING: dict[str, dict[str, Any]] = {
    "qwen3_omni_moe": OMNI
    | {
        "thinker_config": _THINKER
        | {"vision_config": SEEING_VL["qwen3_vl_moe"]["vision_config"] | {"image_size": 32}}
        | {"image_token_id": 90, "vision_start_token_id": 92, "vision_end_token_id": 93}
    }
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_omni_moe": OMNI,
    "qwen3_omni_moe dense layers, biased, weights not normalised": OMNI
    | {
        "thinker_config": _THINKER
        | {"text_config": _TEXT | {"mlp_only_layers": [1], "attention_bias": True, "norm_topk_prob": False}}
    },
}


def REFERENCE(config: dict[str, Any]) -> Any:
    """transformers' model of the part, saved under the names and with the config.json of the whole."""
    import transformers

    made = transformers.Qwen3OmniMoeThinkerConfig(**config["thinker_config"])
    model: Any = transformers.Qwen3OmniMoeThinkerForConditionalGeneration(made)
    model = model.float().eval()
    del model.model.visual, model.model.audio_tower
    save = model.save_pretrained

    def save_as_published(folder: Path) -> None:
        save(folder)
        tensors = load_file(folder / "model.safetensors")
        save_file({f"thinker.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))

    model.save_pretrained = save_as_published
    return model
