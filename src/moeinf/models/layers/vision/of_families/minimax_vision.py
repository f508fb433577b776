"""How MiniMax-M3 sees: CLIP's blocks, heads that turn by time, rows and columns, and two MLPs that make tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import AttentionConfig, NormConfig
from moeinf.models.layers.rope import Rope, plain_rope
from moeinf.models.layers.vision.image_processor import OF_CLIP, Defaults, ImageProcessor, MergedPatches
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Vision, Whole
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_TOWER = "vision_tower.vision_model."
_NAMES = VitNames(_TOWER, "encoder.layers.", "self_attn.", ("layer_norm1", "layer_norm2"), "embeddings.patch_embedding")
_DEFAULTS = Defaults(4 * 28 * 28, 672 * 672, *OF_CLIP)
_UNREAD = [672, 672]  # the size that published settings name, which no program reads
_COMPRESSION = "img_token_compression_config"


def minimax_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    f.fixed(multimodal_projector_bias=True, projector_hidden_act="gelu", vision_feature_layer=-1)
    f.only("vision_feature_select_strategy", "full", None)
    v, wide = f.within("vision_config"), f.count("projector_hidden_size", 6144)
    v.fixed(hidden_act="gelu", num_channels=3, rope_mode="3d", position_embedding_type="rope")
    patch, merge, frames = (
        v.count("patch_size", 14),
        _merged(f, v, "spatial_merge_size"),
        _merged(f, v, "temporal_patch_size"),
    )
    eps = v.number("layer_norm_eps", 1e-5)
    tower = VitConfig(
        _attention(v, eps),
        v.count("num_hidden_layers", 32, maximum=MOST_LAYERS),
        hidden_size,
        Cut.film(patch, merge, frames),
        TowerMlp(("mlp.fc1", "mlp.fc2"), v.count("intermediate_size", 5120), "gelu"),
        _NAMES,
        front=NormConfig(f"{_TOWER}pre_layrnorm.weight", eps, "layer"),
        biased_patches=False,
    )
    projector = Projector(
        (
            Dense("multi_modal_projector.linear_1", wide, activation="gelu"),
            Dense("multi_modal_projector.linear_2", hidden_size),
            "patch by patch",
            Dense("patch_merge_mlp.linear_1", wide, activation="gelu"),
            Dense("patch_merge_mlp.linear_2", hidden_size),
        )
    )

    def form(settings: Fields, tokens: int | None) -> ImageProcessor:
        if settings.get("size") == _UNREAD:
            settings = settings.replaced(size=None)
        return MergedPatches.parse(settings, patch, merge, frames, tokens, _DEFAULTS)

    return Vision(
        MergingTower(tower, projector),
        form,
        f.count("image_token_index", f.count("image_token_id", 200025)),
        merge**2,
        layout=Whole(("]<]start of image[>[",), ("]<]end of image[>[",)),
    )


def _merged(f: Fields, v: Fields, name: str) -> int:
    """What is said of how patches are merged, in any of three places."""
    places = (v, v.within(_COMPRESSION), f.within(_COMPRESSION))
    counts = {each.count(name) for each in places if each.get(name) is not None}
    if len(counts) > 1:
        raise UnsupportedModelError(f"{v.where}: {name} and that of {_COMPRESSION} differ")
    return counts.pop() if counts else 2


def _attention(v: Fields, eps: float) -> AttentionConfig:
    """Of each head three equal parts turn by time, which is 0 in a picture, row and column; the rest does not."""
    found = tower_attention(
        v.count("hidden_size", 1280), v.count("num_attention_heads", 16), eps, names=(None, "out_proj")
    )
    rope = v.within("rope_parameters")
    rope.only("rope_type", "axial", "default", None)
    size = found.head_dim // 3 // 2 * 2
    each = plain_rope(size, rope.number("rope_theta", v.number("rope_theta", 1e4))).frequencies
    return replace(found, rope=Rope(np.tile(each, 3), axes=np.repeat([0, 1, 2], len(each))))
