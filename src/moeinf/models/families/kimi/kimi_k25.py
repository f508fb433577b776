"""Kimi K2.5, K2.6 and K2.7, the language model of them: Kimi K2 under other names of tensors (transformers' Kimi_K25).

Checkpoints hold a model of images beside it (`vision_tower.*`, `mm_projector.*`), which is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.text_part import text_part
from moeinf.types import TensorPlan

_VISION = r"(vision_tower|mm_projector|multi_modal_projector)\..*"


class Family(deepseek_v3.Family):
    name = "kimi_k25"

    def __init__(self, config: dict[str, Any]) -> None:
        # Readers differ in what a config without the flag means: what is stored decides.
        text = text_part({"tie_word_embeddings": True} | config, prefix="language_model.model.")
        c = self.parse(text.fields)
        decoder = c.decoder.named(prefix=text.prefix, head_prefix="language_model.")
        self._take(replace(c, decoder=decoder))

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = super().tensors
        return replace(plan, ignored=(*plan.ignored, _VISION))
