"""Pixtral's vision tower, with the patch merger of Mistral Small (arXiv 2410.07073; Mistral3 in transformers)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.models.activations import activation_of
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.attention_config import MLP_NAMES, AttentionConfig, NormConfig
from moeinf.models.layers.rope import Rope, plain_rope
from moeinf.models.layers.vision.image_processor import LongestEdge
from moeinf.models.layers.vision.projector import Dense, Projector
from moeinf.models.layers.vision.vision import RowByRow, Vision
from moeinf.models.layers.vision.vit import Cut, MergingTower, TowerMlp, VitConfig, VitNames, tower_attention
from moeinf.types import JsonObject

_TOWER, _PROJECTOR = "vision_tower.", "multi_modal_projector."
_NAMES = VitNames(_TOWER, "transformer.layers.", "attention.", ("attention_norm", "ffn_norm"), "patch_conv")
_EPS = 1e-5  # of the tower's norms


def pixtral_vision(config: JsonObject, hidden_size: int, norm_eps: float) -> Vision | None:
    """hidden_size, norm_eps: the language model's."""
    f = Fields(config)
    if f.get("vision_config") is None or f.get("text_config") is None:
        return None
    f.only("vision_feature_layer", -1, None)
    v, merge = f.within("vision_config"), f.count("spatial_merge_size", 2)
    v.only("num_channels", 3, None)
    patch, attention = v.count("patch_size", 16), _attention(v)
    tower = VitConfig(
        attention,
        v.count("num_hidden_layers", 24, maximum=MOST_LAYERS),
        hidden_size,
        Cut(patch, merge, (3, patch, patch)),
        TowerMlp(
            tuple(f"feed_forward.{name}" for name in MLP_NAMES),
            v.count("intermediate_size", 4096),
            activation_of(v, "hidden_act", "gelu"),
            biased=False,
        ),
        _NAMES,
        front=NormConfig(f"{_TOWER}ln_pre.weight", _EPS),
        biased_patches=False,
    )
    biased, between = f.flag("multimodal_projector_bias", False), activation_of(f, "projector_hidden_act", "gelu")
    projector = Projector(
        (
            NormConfig(f"{_PROJECTOR}norm.weight", norm_eps),
            "number by number",
            Dense(f"{_PROJECTOR}patch_merger.merging_layer", attention.hidden_size, biased=False),
            Dense(f"{_PROJECTOR}linear_1", hidden_size, biased, between),
            Dense(f"{_PROJECTOR}linear_2", hidden_size, biased),
        )
    )
    return Vision(
        MergingTower(tower, projector),
        lambda settings, tokens: LongestEdge.parse(settings, patch, merge, tokens),
        f.count("image_token_index", f.count("image_token_id", 10)),
        merge**2,
        layout=RowByRow("[IMG_BREAK]", "[IMG_END]"),
    )


def _attention(v: Fields) -> AttentionConfig:
    """Rows turn every other pair of the first half, columns those between, which lie behind them."""
    heads = v.count("num_attention_heads", 16)
    found = tower_attention(
        v.count("hidden_size", 1024), heads, _EPS, "rms", biases=(False, False), names=(None, "o_proj")
    )
    v.only("head_dim", found.head_dim, None)
    rope = v.within("rope_parameters")
    rope.only("rope_type", "axial", "default", None)
    frequencies = plain_rope(found.head_dim, rope.number("rope_theta", v.number("rope_theta", 1e4))).frequencies
    both = np.concatenate([frequencies[::2], frequencies[1::2]])
    return replace(found, rope=Rope(both, axes=np.repeat([1, 2], len(both) // 2)))
