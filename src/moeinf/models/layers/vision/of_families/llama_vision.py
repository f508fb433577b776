"""How Llama 4 sees: a ViT over tiles of a picture, with a class token, whose patches are merged four by four."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import AttentionConfig, NormConfig
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.processors.tiled_pictures import TiledPictures
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Tiles, Vision, axial_frequencies
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_TOWER, _ADAPTER = "vision_model.", "vision_model.vision_adapter.mlp."
_NAMES = VitNames(
    _TOWER,
    "model.layers.",
    "self_attn.",
    ("input_layernorm", "post_attention_layernorm"),
    "patch_embedding.linear",
    "class_embedding",
)
_EPS = 1e-5


def llama_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    v = f.within("vision_config")
    v.only("hidden_act", "gelu", None)
    v.only("num_channels", 3, None)
    v.only("norm_eps", _EPS, None)
    v.only("multi_modal_projector_bias", False, None)
    v.only("vision_feature_select_strategy", "default", None)
    v.only("vision_feature_layer", -1, None)
    patch, tile, ratio = v.count("patch_size", 14), v.count("image_size", 448), v.number("pixel_shuffle_ratio", 0.5)
    merge = round(1 / ratio)
    if merge * ratio != 1 or tile % (patch * merge):
        raise UnsupportedModelError(f"{v.where}: pixel_shuffle_ratio {ratio} of tiles of {tile} is not supported")
    attention = _attention(v)
    tower = VitConfig(
        attention,
        v.count("num_hidden_layers", 34, maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, merge, (3 * patch**2,)),
        TowerMlp(("mlp.fc1", "mlp.fc2"), v.count("intermediate_size", 5632), "gelu"),
        _NAMES,
        LearntPositions(f"{_TOWER}positional_embedding_vlm", tile // patch, "corners", last=True),
        placed=NormConfig(f"{_TOWER}layernorm_pre.weight", _EPS, "layer"),
        biased_patches=False,
    )
    of_tile = (tile // patch // merge) ** 2
    return Vision(
        MergingTower(tower, _projector(v, attention.hidden_size * merge**2, hidden_size)),
        lambda settings, tokens: TiledPictures.parse(settings, patch, merge, tile, tokens),
        "<|image|>",
        -(-((tile // patch) ** 2 + 1) // of_tile),  # with a share of the class token
        layout=Tiles(
            first=(f.count("boi_token_index", 200080),),
            between=("<|tile_x_separator|>",),
            below=("<|tile_y_separator|>",),
            whole=(("<|image|>",), (f.count("eoi_token_index", 200081),)),
        ),
    )


def _attention(v: Fields) -> AttentionConfig:
    """Neighbours turn together: by the column, those of the second half by the row."""
    heads = v.count("num_attention_heads", 16)
    found = tower_attention(v.count("hidden_size", 768), heads, _EPS, names=(None, "o_proj"))
    rope = v.within("rope_parameters")
    rope.only("rope_type", "axial", "default", None)
    each = axial_frequencies(found.head_dim, rope.number("rope_theta", v.number("rope_theta", 1e4)))
    axes = np.repeat([2, 1], len(each))
    return replace(found, rope=Rope(np.concatenate([each, each]), interleaved=True, axes=axes))


def _projector(v: Fields, joined: int, hidden_size: int) -> Projector:
    """joined: numbers of the patches of a token."""
    v.only("intermediate_size", joined)  # which says both
    inner = v.count("projector_output_dim", 4096)
    v.only("vision_output_dim", inner)
    if v.count("projector_input_dim", 4096) != inner:
        raise UnsupportedModelError(f"{v.where}: projector_input_dim is not projector_output_dim, {inner}")
    return Projector(
        (
            NormConfig(f"{_TOWER}layernorm_post.weight", _EPS, "layer"),
            "patch by patch",
            Dense(f"{_ADAPTER}fc1", inner, biased=False, activation="gelu"),
            Dense(f"{_ADAPTER}fc2", inner, biased=False, activation="gelu"),
            Dense("multi_modal_projector.linear_1", hidden_size, biased=False),
        )
    )
