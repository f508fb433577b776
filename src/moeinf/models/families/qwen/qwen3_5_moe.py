"""Qwen3.5-MoE and Qwen3.6-MoE, the language model of them: Qwen3-Next with DeltaNet's projections apart.

Checkpoints hold a model of images beside it (`model.visual.*`), which is left out. Positions of text are plain: mrope
gives every token three positions, which differ for images alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.families.qwen import qwen3_next
from moeinf.models.fields import Fields
from moeinf.types import TensorPlan

VISION = r"model\.visual\..*"


def parse(config: dict[str, Any]) -> qwen3_next.Config:
    Fields(config).within("text_config")  # refuses what is no object
    nested: dict[str, Any] | None = config.get("text_config")  # none where only the language model was saved
    above = {name: value for name, value in config.items() if name in ("tie_word_embeddings", "quantization_config")}
    if nested is not None:  # what is said outside counts, also for transformers: the two must not differ
        Fields(nested, "config.json: text_config").only(
            "tie_word_embeddings", config.get("tie_word_embeddings", False), None
        )
    f = Fields(
        _without_mrope(config if nested is None else nested | above),
        "config.json" if nested is None else "config.json: text_config",
    )
    for name, *allowed in (
        ("attn_output_gate", True),
        ("output_gate_type", "swish", "silu"),
        ("norm_topk_prob", True),
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
    ):
        f.only(name, *allowed, None)
    c = qwen3_next.Config.parse(f, stacked=False)
    return c if nested is None else replace(c, decoder=replace(c.decoder, prefix="model.language_model."))


class Family(qwen3_next.Family):
    name = "qwen3_5_moe"

    def __init__(self, config: dict[str, Any]) -> None:
        self._take(parse(config))

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = super().tensors
        return replace(plan, ignored=(*plan.ignored, VISION))


def _without_mrope(text: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {key: v for key, v in value.items() if key not in ("mrope_section", "mrope_interleaved")}
        if name in ("rope_parameters", "rope_scaling") and isinstance(value, dict)
        else value
        for name, value in text.items()
    }
