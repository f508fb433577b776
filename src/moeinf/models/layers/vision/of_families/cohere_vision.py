"""How Command A+ sees: SigLIP over tiles of a picture (arXiv 2303.15343), whose patches are merged by a gated MLP."""

from __future__ import annotations

from moeinf.errors import UnsupportedModelError
from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import NormConfig
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.processors.stretched_tiles import StretchedTiles
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Tiles, Vision
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_TOWER, _PROJECTOR = "model.vision_tower.vision_model.", "model.multi_modal_projector."
RENAMED = ((r"^model\.vision_tower\.(?!vision_model\.)", _TOWER),)  # by transformers 5
_NAMES = VitNames(_TOWER, "encoder.layers.", "self_attn.", ("layer_norm1", "layer_norm2"), "embeddings.patch_embedding")
_BREAK = "<|IMG_LINE_BREAK|>"  # behind each tile


def cohere_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    f.fixed(alignment_activation_fn="swiglu", enable_adapter_layer_norm=False, vision_feature_layer=-1)
    f.only("vision_feature_select_strategy", "full", None)
    v = f.within("vision_config")
    v.fixed(model_type="siglip_vision_model", num_channels=3)
    patch, merge, tile = v.count("patch_size", 16), f.count("downsample_factor", 2), v.count("image_size", 512)
    hidden, inner, eps = (
        v.count("hidden_size", 1152),
        f.count("alignment_intermediate_size", 36864),
        v.number("layer_norm_eps", 1e-6),
    )
    if tile % (patch * merge) or inner % 2:
        raise UnsupportedModelError(
            f"{f.where}: tiles of {tile} pixels (image_size) in tokens of {patch * merge}, or "
            f"alignment_intermediate_size {inner}, which is no even number, is not supported"
        )
    tower = VitConfig(
        tower_attention(hidden, v.count("num_attention_heads", 12), eps, names=(None, "out_proj"), turned=False),
        v.count("num_hidden_layers", 27, maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, merge, (3, patch, patch)),
        TowerMlp(
            ("mlp.fc1", "mlp.fc2"), v.count("intermediate_size", 3072), activation_of(v, "hidden_act", "gelu_tanh")
        ),
        _NAMES,
        LearntPositions(f"{_TOWER}embeddings.position_embedding.weight", tile // patch, "linear"),
    )
    projector = Projector(
        (
            NormConfig(f"{_TOWER}post_layernorm.weight", eps, "layer"),
            "patch by patch",
            Dense(f"{_PROJECTOR}linear_1", inner),
            "gated by the second half",
            Dense(f"{_PROJECTOR}linear_2", hidden_size),
        )
    )
    return Vision(
        MergingTower(tower, projector),
        lambda settings, tokens: StretchedTiles.parse(settings, patch, merge, tile, tokens),
        f.count("image_token_id", f.count("image_token", 255036)),
        merge**2,
        layout=Tiles(first=("<|START_OF_IMG|>",), tile=((), (_BREAK,)), whole=((), (_BREAK, "<|END_OF_IMG|>"))),
    )
