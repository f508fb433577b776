"""How Step 3.7 sees: a ViT over a picture and windows of it, whose patches two convolutions make fewer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.errors import UnsupportedModelError
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import AttentionConfig, NormConfig
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.vision.learnt_positions import LearntPositions
from moeinf.models.layers.vision.processors.cropped_pictures import CroppedPictures
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import Tiles, Vision, axial_frequencies
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_TOWER = "vision_model."
_NAMES = VitNames(
    _TOWER,
    "transformer.resblocks.",
    "attn.",
    ("ln_1", "ln_2"),
    "conv1",
    scales=("ls_1.gamma", "ls_2.gamma"),
    halvings=("vit_downsampler1", "vit_downsampler2"),
)
_HALVED = 4  # patches of a side of what both convolutions make one of


def step_vision(config: JsonObject, hidden_size: int) -> Vision | None:
    """hidden_size: of the language model."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    f.only("understand_projector_stride", 2, None)
    v = f.within("vision_config")
    v.fixed(hidden_act="quick_gelu", num_channels=3)
    patch, eps, attention = v.count("patch_size", 14), v.number("layer_norm_eps", 1e-5), _attention(v)
    side = v.count("image_size", 728) // patch
    if not side:
        raise UnsupportedModelError(f"{v.where}: image_size is less than patch_size, {patch}")
    size = v.count("intermediate_size", int(attention.hidden_size * v.number("mlp_ratio", 8960 / 1536)))
    tower = VitConfig(
        attention,
        v.count_of("num_hidden_layers", "layers", maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, 1, (3, patch, patch)),
        TowerMlp(("mlp.c_fc", "mlp.c_proj"), size, "quick_gelu"),
        _NAMES,
        LearntPositions(f"{_TOWER}positional_embedding", side, "linear"),
        placed=NormConfig(f"{_TOWER}ln_pre.weight", eps, "layer"),
        biased_patches=False,
    )
    projector = Projector((Dense("vit_large_projector", hidden_size, f.flag("projector_bias", False)),))
    return Vision(
        MergingTower(tower, projector),
        lambda settings, tokens: CroppedPictures.parse(settings, patch, patch * _HALVED, tokens),
        f.count("image_token_id", 151679),
        _HALVED**2,
        layout=Tiles(
            tile=(("<patch_start>",), ("<patch_end>",)),
            below=("<patch_newline>",),
            below_last=False,
            whole=(("<im_start>",), ("<im_end>",)),
        ),
    )


def _attention(v: Fields) -> AttentionConfig:
    """Neighbours turn together: by the column, those of the second half by the row."""
    eps = v.number("layer_norm_eps", 1e-5)
    hidden, heads = v.count_of("hidden_size", "width"), v.count_of("num_attention_heads", "heads")
    found = tower_attention(hidden, heads, eps, names=("in_proj", "out_proj"))
    rope = v.within("rope_parameters")
    rope.only("rope_type", "axial", "default", None)
    each = axial_frequencies(found.head_dim, rope.number("rope_theta", v.number("rope_theta", 1e4)))
    axes = np.repeat([2, 1], len(each))
    return replace(found, rope=Rope(np.concatenate([each, each]), interleaved=True, axes=axes))
