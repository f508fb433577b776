"""What the tiny configs of all families share, and where they are found: one file a family in configs/."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}


def all_configs(attribute: str = "CONFIGS") -> dict[str, dict[str, Any]]:
    """By a name that tells what is switched on, for the caller to change.

    Those of encoder-decoder models are in SEQ2SEQ_CONFIGS.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((Path(__file__).parent / "configs").glob("[a-z]*.py")):
        found |= getattr(import_module(f"tests.support.configs.{path.stem}"), attribute, {})
    return copy.deepcopy(found)


def transformers_model(config: dict[str, Any], auto_class: str = "AutoModelForCausalLM") -> Any:
    """Of transformers, over random weights."""
    import transformers
    from transformers import AutoConfig

    values = {key: value for key, value in config.items() if key != "model_type"}
    model: Any = getattr(transformers, auto_class)
    return model.from_config(AutoConfig.for_model(config["model_type"], **values)).float().eval()


def reference(config: dict[str, Any], auto_class: str = "AutoModelForCausalLM") -> Any:
    """What a family is compared with: REFERENCE(config) of its configs' file, or transformers itself."""
    family = import_module(f"tests.support.configs.{config['model_type'].replace('-', '_')}")
    if hasattr(family, "REFERENCE"):
        return family.REFERENCE(config)
    return transformers_model(config, auto_class)


def text_of(config: Mapping[str, Any]) -> Any:
    """The fields of the language model, a dict, of a checkpoint that may also see and hear."""
    inside = config.get("thinker_config") or config
    return inside.get("text_config") or inside


def without_vision(name: str, config: dict[str, Any]) -> Any:
    """transformers' model of a checkpoint that also sees images, less that part, whose tensors the plan ignores."""
    import transformers

    values = {key: value for key, value in config.items() if key != "model_type"}
    made = getattr(transformers, f"{name}Config")(**values)
    whole: Any = getattr(transformers, f"{name}ForConditionalGeneration")(made).float().eval()
    del whole.model.visual
    return whole
