"""GLM-4.5V and 4.6V, the language model of them: GLM-4.5-Air's (arXiv 2507.01006).

Checkpoints hold a model of images beside it (`model.visual.*`), which is left out.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.glm import glm4_moe
from moeinf.models.text_part import VISION, text_part
from moeinf.types import JsonObject


class Family(glm4_moe.Family):
    name = "glm4v_moe"
    ignored = (VISION,)

    def __init__(self, config: JsonObject) -> None:
        text = text_part(config)
        text.fields.only("use_qk_norm", False, None)
        text.fields.present("attention_bias")
        spec = self.parse(text.fields)
        self.take(replace(spec, decoder=spec.decoder.named(prefix=text.prefix)))
