"""GLM-5V: GLM-5 as it is stored alone, beside the tower of Kimi K2.5 (Glm5vForConditionalGeneration)."""

from __future__ import annotations

from moeinf.models.families.glm import glm_moe_dsa
from moeinf.models.families.kimi.kimi_k25 import VISION
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.moonvit import Shown, moonvit
from moeinf.models.layers.vision.vision import Whole, seeing
from moeinf.models.text_part import TextIn
from moeinf.types import JsonObject


class Family(glm_moe_dsa.Family):
    name = "glm5v"
    ignored = (VISION,)
    renamed = (
        (r"^mm_projector\.linear_1\.", "mm_projector.proj.0."),
        (r"^mm_projector\.linear_2\.", "mm_projector.proj.2."),
    )
    text = TextIn("model.")

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        f, hidden_size = Fields(config), self.decoder.attention.hidden_size
        self.vision, self.no_vision = seeing(lambda: moonvit(f, hidden_size, _shown(f)))


def _shown(f: Fields) -> Shown:
    token = f.count("media_placeholder_token_id", 154854)
    return Shown(token, Whole(), ("<|begin_of_image|>", "<|end_of_image|>"))
