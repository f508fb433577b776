"""Hunyuan 4 VL (HYV4VLForConditionalGeneration): Hunyuan 4's language model, and a tower that sees pictures."""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.hunyuan import hy_v4
from moeinf.models.layers.vision.of_families.hunyuan_vision import hunyuan_vision
from moeinf.models.layers.vision.picture_positions import turned_by_pictures
from moeinf.models.layers.vision.vision import Vision, seeing
from moeinf.models.text_part import TextIn
from moeinf.types import JsonObject

_VISION = r"(vit|model\.vision_tower)\..*"


class Family(hy_v4.Family):
    name = "hy_v4_vl"
    text = TextIn("model.")
    ignored = (_VISION,)
    renamed = ((r"\.hc_head\.hc_pre\.", ".hc_head."), *hy_v4.Family.renamed)

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: self._seeing(config))

    def _seeing(self, config: JsonObject) -> Vision | None:
        d = self.decoder
        vision = hunyuan_vision(config, d.attention.hidden_size)
        rope = turned_by_pictures(config, d.attention.rope, [12, 10, 10])
        self.take(replace(self.spec, decoder=replace(d, attention=replace(d.attention, rope=rope))))
        return vision
