"""Kimi K2.5, K2.6 and K2.7, the language model of them: Kimi K2 under other names of tensors (transformers' Kimi_K25).

Checkpoints hold a model of images beside it (`vision_tower.*`, `mm_projector.*`), which is left out.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject

_VISION = r"(vision_tower|mm_projector|multi_modal_projector)\..*"


class Family(deepseek_v3.Family):
    name = "kimi_k25"
    ignored = (_VISION,)

    def __init__(self, config: JsonObject) -> None:
        # Readers differ in what a config without the flag means: what is stored decides.
        text = text_part({"tie_word_embeddings": True} | config, prefix="language_model.model.")
        spec = self.parse(text.fields)
        self.take(replace(spec, decoder=spec.decoder.named(prefix=text.prefix, head_prefix="language_model.")))
