"""GLM-4.5V and 4.6V, the language model of them: GLM-4.5-Air's (arXiv 2507.01006).

Checkpoints hold a model of images beside it (`model.visual.*`), which is left out.
"""

from __future__ import annotations

from moeinf.models.families.glm import glm4_moe
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.text_part import VISION, TextIn


class Family(glm4_moe.Family):
    name = "glm4v_moe"
    ignored = (VISION,)
    text = TextIn()

    @staticmethod
    def parse(f: Fields) -> Spec:
        f.only("use_qk_norm", False, None)
        f.present("attention_bias")
        return glm4_moe.Family.parse(f)
