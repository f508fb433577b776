"""The config.json of each checkpoint in `published/`, cut to a size that a test can run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parent / "published"
# By what widths and numbers of heads are divided, so that a layer has a few million weights. Heads keep their size.
_DIVISORS = {
    "mixtral-8x7b": 8,
    "mixtral-8x22b": 8,
    "wizardlm-2-8x22b": 8,
    "qwen3-30b-a3b": 4,
    "qwen3-235b-a22b": 4,
    "olmoe-1b-7b-0125": 4,
    "qwen1.5-moe-a2.7b": 4,
    "qwen2-57b-a14b": 4,
    "deepseek-v2-lite": 4,
    "deepseek-v2": 8,
    "deepseek-v3": 8,
    "deepseek-r1": 8,
    "gpt-oss-20b": 5,
    "gpt-oss-120b": 5,
    "granite-3.1-1b-a400m-instruct": 2,
    "granite-powermoe-3b": 4,
    "phi-3.5-moe": 8,
    "switch-base-128": 3,
    "nllb-moe-54b": 8,
}
_DIVIDED = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "d_model",
    "d_ff",
    "num_heads",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_LIMITS = {
    "vocab_size": 600,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_experts": 16,
    "num_local_experts": 16,
    "n_routed_experts": 16,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
}
NAMES = tuple(_DIVISORS)
# Those which differ from another one in nothing but sizes, and whose cuts are alike.
_ALIKE = ("mixtral-8x22b", "wizardlm-2-8x22b", "qwen3-235b-a22b", "deepseek-r1", "gpt-oss-120b")
DISTINCT = tuple(name for name in NAMES if name not in _ALIKE)


def published(name: str) -> dict[str, Any]:
    """The config.json of this checkpoint with fewer layers and experts and narrower widths, in its proportions."""
    return _cut(json.loads((PUBLISHED / name / "config.json").read_text()), _DIVISORS[name])


def _cut(config: dict[str, Any], divisor: int) -> dict[str, Any]:
    small = dict(config)
    small |= {name: max(1, config[name] // divisor) for name in _DIVIDED if config.get(name)}
    small |= {name: min(small[name], limit) for name, limit in _LIMITS.items() if config.get(name)}
    small |= {name: min(value, 599) for name, value in config.items() if name.endswith("_token_id") and value}
    if "encoder_layers" in config:
        small["num_hidden_layers"] = small["encoder_layers"]  # another name for it
    if "layer_types" in config:
        small["layer_types"] = config["layer_types"][: small["num_hidden_layers"]]
    return small
