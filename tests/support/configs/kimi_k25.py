"""Tiny configs of Kimi K2.5: whole checkpoints, and one of which the tower is read."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.support.configs.kimi_k2 import KIMI
from tests.support.tiny_models import transformers_model

_TEXT = {name: value for name, value in KIMI.items() if name != "model_type"} | {"model_type": "deepseek_v3"}
KIMI_2_5: dict[str, Any] = {"model_type": "kimi_k25", "text_config": _TEXT, "tie_word_embeddings": False}
_VISION = {
    "num_hidden_layers": 3,
    "hidden_size": 128,
    "intermediate_size": 24,
    "num_attention_heads": 16,
    "patch_size": 4,
    "pos_emb_height": 5,
    "pos_emb_width": 5,
    "merge_kernel_size": [2, 2],
}
SEEING: dict[str, dict[str, Any]] = {
    "kimi_k25": KIMI_2_5 | {"vision_config": _VISION, "projection_hidden_size": 128, "image_token_id": 90}
}
CONFIGS = {"kimi_k25": KIMI_2_5}


def REFERENCE(config: dict[str, Any]) -> Any:
    """DeepSeek-V3 of transformers, saved under the names of published checkpoints: transformers, which has the whole
    model, saves its layers as `blocks`."""
    model = transformers_model(config["text_config"])
    save = model.save_pretrained

    def save_as_published(folder: Path) -> None:
        save(folder)
        tensors = load_file(folder / "model.safetensors")
        save_file({f"language_model.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))

    model.save_pretrained = save_as_published
    return model
