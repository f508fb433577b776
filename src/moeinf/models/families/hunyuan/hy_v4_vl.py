"""Hunyuan 4 VL, the language model of it (HYV4VLForConditionalGeneration): Hunyuan 4's.

Checkpoints hold a model of images beside it (`vit.*`), which is left out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from moeinf.models.families.hunyuan import hy_v4
from moeinf.models.text_part import text_part
from moeinf.types import TensorPlan

_VISION = r"(vit|model\.vision_tower)\..*"


class Family(hy_v4.Family):
    name = "hy_v4_vl"

    def __init__(self, config: dict[str, Any]) -> None:
        text = text_part(config, prefix="model.")
        self._take(hy_v4.parse(text.fields))

    @cached_property
    def tensors(self) -> TensorPlan:
        plan = super().tensors
        renamed = {r"\.hc_head\.hc_pre\.": ".hc_head.", **plan.renamed}
        return replace(plan, ignored=(*plan.ignored, _VISION), renamed=renamed)
