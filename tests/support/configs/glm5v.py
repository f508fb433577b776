"""Tiny configs of GLM-5V: whole checkpoints, and one of which the tower is read."""

import json
from pathlib import Path
from typing import Any

from tests.support.configs.glm_moe_dsa import CONFIGS as OF_TEXT
from tests.support.tiny_models import transformers_model

GLM5V: dict[str, Any] = {
    "model_type": "glm5v",
    "text_config": OF_TEXT["glm_moe_dsa"],
    "media_placeholder_token_id": 90,
    "tie_word_embeddings": False,
}
_VISION = {
    "num_hidden_layers": 3,
    "hidden_size": 128,
    "intermediate_size": 24,
    "num_attention_heads": 16,
    "patch_size": 4,
    "init_pos_emb_height": 5,
    "init_pos_emb_width": 5,
    "merge_kernel_size": [2, 2],
}
SEEING: dict[str, dict[str, Any]] = {"glm5v": GLM5V | {"vision_config": _VISION}}
CONFIGS = {"glm5v": GLM5V}


def REFERENCE(config: dict[str, Any]) -> Any:
    """GLM-5 of transformers, whose names of tensors checkpoints keep, saved with the config.json of the whole."""
    model = transformers_model(config["text_config"])
    save = model.save_pretrained

    def save_as_published(folder: Path) -> None:
        save(folder)
        (folder / "config.json").write_text(json.dumps(config))

    model.save_pretrained = save_as_published
    return model
