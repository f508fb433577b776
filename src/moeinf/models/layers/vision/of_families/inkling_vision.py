"""How Inkling sees: patches of 40 pixels, each of which becomes a token by itself."""

from __future__ import annotations

from moeinf.models.fields import Fields
from moeinf.models.layers.vision.of_families.folding_tower import FoldingConfig, FoldingTower
from moeinf.models.layers.vision.processors.cut_pictures import CutPictures
from moeinf.models.layers.vision.vision import Vision
from moeinf.types import JsonObject

_TOWER = "model.visual."
_LARGEST = (512, 16)  # patch and frames: bounds what a config.json makes of a plan
RENAMED = (  # by transformers 5
    (r"^model\.vision_tower\.encoder_layers\.(\d+)\.projection\.", rf"{_TOWER}layers.linear_\1."),
    (r"^model\.vision_tower\.encoder_layers\.(\d+)\.layer_norm\.", rf"{_TOWER}layers.norm_\1."),
    (r"^model\.vision_tower\.", _TOWER),
)


def inkling_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    v.fixed(vision_encoder_type="hmlp", use_vision_norm=True, n_channels=3, num_channels=3)
    for name in ("decoder_dmodel", "text_hidden_size"):
        v.only(name, hidden_size, None)
    patch = v.count("patch_size", 40, 2, _LARGEST[0])
    tower = FoldingTower(
        FoldingConfig(
            patch,
            v.count("temporal_patch_size", 2, maximum=_LARGEST[1]),
            v.count_of("n_layers", "num_hidden_layers", maximum=64),
            hidden_size,
            _TOWER,
        )
    )
    return Vision(
        tower, lambda settings, tokens: CutPictures.parse(settings, patch, tokens), f.count("image_token_id", 200054), 1
    )
