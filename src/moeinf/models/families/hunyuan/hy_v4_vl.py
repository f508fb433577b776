"""Hunyuan 4 VL, the language model of it (HYV4VLForConditionalGeneration): Hunyuan 4's.

Checkpoints hold a model of images beside it (`vit.*`), which is left out.
"""

from __future__ import annotations

from moeinf.models.families.hunyuan import hy_v4
from moeinf.models.text_part import TextIn

_VISION = r"(vit|model\.vision_tower)\..*"


class Family(hy_v4.Family):
    name = "hy_v4_vl"
    text = TextIn("model.")
    ignored = (_VISION,)
    renamed = ((r"\.hc_head\.hc_pre\.", ".hc_head."), *hy_v4.Family.renamed)
