"""Nemotron 3 Omni: Nemotron 3's language model, and C-RADIO, which sees (NemotronH_Omni_Reasoning_V3 in transformers).

Checkpoints hold models that hear beside it, which are left out.
"""

from __future__ import annotations

from typing import ClassVar

from moeinf.models.families.hybrid import nemotron_h
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.of_families.nemotron_vision import nemotron_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject


class Family(nemotron_h.Family):
    name = "nemotron_h_omni"
    ignored = (  # tensors of models that are left out
        r"(vision_model|mlp1|multi_modal_projector|vision_projector|vision_final_layernorm|sound_encoder|"
        r"sound_projection|audio_tower|embed_audio)\..*",
    )
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"^language_model\.(backbone|model)\.", "backbone."),
        (r"^language_model\.", ""),
        *nemotron_h.Family.renamed,
    )

    def __init__(self, config: JsonObject) -> None:
        if config.get("text_config") is None and "llm_config" in config:  # as published
            config = config | {"text_config": config["llm_config"]}
        self.take(self.parse(text_part(config).fields))
        self.vision, self.no_vision = seeing(
            lambda: nemotron_vision(Fields(config), self.decoder.attention.hidden_size)
        )
