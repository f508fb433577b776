"""ERNIE 4.5 VL as it was published: fields of text and images in lists of two, read as transformers saves them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.family import family_of
from tests.support.configs.ernie4_5_vl_moe import ERNIE_VL

_OF_TEXT = {key: value for key, value in ERNIE_VL["text_config"].items() if key != "rope_parameters"}
PUBLISHED: dict[str, Any] = _OF_TEXT | {
    "model_type": "ernie4_5_moe_vl",
    "moe_num_experts": [8, 8],
    "moe_layer_start_index": [1, 1],
    "moe_layer_end_index": [4, 3],
    "moe_layer_interval": 1,
    "rope_theta": 1e4,
    "rope_scaling": {"type": "default", "mrope_section": [2, 2, 4]},
    "rope_3d": True,
    "im_patch_id": 90,
    "image_start_token_id": 92,
    "image_end_token_id": 93,
    "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 1, "patch_size": 4},
    "spatial_conv_size": 2,
    "temporal_conv_size": 2,
}


def test_a_published_config_says_what_transformers_saves() -> None:
    published, saved = family_of(PUBLISHED), family_of(ERNIE_VL)
    assert published.no_vision == saved.no_vision == ""
    assert replace(published.tensors, follows={}) == replace(saved.tensors, follows={})  # functions equal themselves
    assert published.seen_by == saved.seen_by
    assert published.info("bf16") == saved.info("bf16")
    assert published.vision is not None and saved.vision is not None
    assert (published.vision.token, published.vision.brackets) == (saved.vision.token, saved.vision.brackets)


def test_experts_are_in_the_layers_that_text_or_images_have_them_in() -> None:
    later = family_of(PUBLISHED | {"moe_layer_start_index": [2, 1], "moe_layer_end_index": [1, 1]})
    assert later.tensors.moe.num_layers == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"moe_num_experts": [8, 4]}, r"moe_num_experts \[8, 4\] is not supported"),
        ({"moe_num_experts": 8}, "moe_num_experts must be"),
        ({"moe_layer_start_index": [1]}, "moe_layer_start_index must be"),
        ({"rope_3d": False}, "rope_3d = False is not supported"),
    ],
)
def test_other_lists_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=said):
        family_of(PUBLISHED | changed)


def test_a_tower_that_is_not_read_leaves_the_text() -> None:
    family = family_of(PUBLISHED | {"temporal_conv_size": 4})
    assert "temporal_conv_size" in family.no_vision
    assert family.tensors.moe.num_experts == 8
