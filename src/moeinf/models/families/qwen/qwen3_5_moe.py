"""Qwen3.5-MoE and Qwen3.6-MoE, the language model of them: Qwen3-Next with DeltaNet's projections apart.

Checkpoints hold a model of images beside it (`model.visual.*`), which is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.families.qwen import qwen3_next
from moeinf.models.text_part import VISION, text_part, tied_as_said_outside
from moeinf.types import TensorPlan


def parse(config: dict[str, Any]) -> qwen3_next.Config:
    text = text_part(config)
    tied_as_said_outside(config)
    for name, *allowed in (
        ("attn_output_gate", True),
        ("output_gate_type", "swish", "silu"),
        ("norm_topk_prob", True),
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
    ):
        text.fields.only(name, *allowed, None)
    c = qwen3_next.Config.parse(text.fields, stacked=False)
    return replace(c, decoder=replace(c.decoder, prefix=text.prefix))


class Family(qwen3_next.Family):
    name = "qwen3_5_moe"

    def __init__(self, config: dict[str, Any]) -> None:
        self._take(parse(config))

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = super().tensors
        return replace(plan, ignored=(*plan.ignored, VISION))
