"""Kimi K2.5, K2.6 and K2.7: Kimi K2 under other names of tensors, and a tower that sees pictures (Kimi_K25)."""

from __future__ import annotations

from moeinf.models.families.deepseek import deepseek_v3
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.moonvit import moonvit, shown_by_kimi
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import TextIn
from moeinf.types import JsonObject

VISION = r"(vision_tower|mm_projector|multi_modal_projector)\..*"


class Family(deepseek_v3.Family):
    name = "kimi_k25"
    ignored = (VISION,)
    renamed = (  # which transformers 5.24 saves like this
        (r"^language_model\.model\.blocks\.", "language_model.model.layers."),
        (r"^model\.mm_projector\.", "mm_projector."),
        (r"^vision_tower\.encoder\.patch_embed\.", "vision_tower.patch_embed."),
    )
    # Readers differ in what a config without tie_word_embeddings means: what is stored decides.
    text = TextIn("language_model.model.", "language_model.", tied=True)

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        f, hidden_size = Fields(config), self.decoder.attention.hidden_size
        self.vision, self.no_vision = seeing(lambda: moonvit(f, hidden_size, shown_by_kimi(f)))
