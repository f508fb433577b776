"""Muse Spark's tower: a config.json that describes none, or one that is not followed, leaves the text."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.models.family import family_of
from tests.support.tiny_models import all_configs


def no_vision(**said: Any) -> str:
    config = all_configs("SEEING")["muse_spark"]
    config["vision_config"] |= {name: value for name, value in said.items() if name not in config}
    family = family_of(config | {name: value for name, value in said.items() if name in config})
    assert (family.vision is None) == bool(family.no_vision)
    return family.no_vision


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"pos_emb_width": 6}, "pos_emb_width = 6 is not supported (only 4)"),
        ({"pos_emb_width": None}, "pos_emb_width = None is not supported (only 4)"),
        ({"pos_emb_height": 5, "pos_emb_width": 5}, "pos_emb_height 5 is no multiple of merge_size, 2"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types must be a list with a kind for each of 5 layers"),
        ({"layer_types": ["sliding_attention"] * 5}, "'sliding_attention' in layer_types is not supported"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_type = 'default' is not supported (only 'axial')"),
        ({"num_attention_heads": 3}, "a vision tower with heads of 10.6667"),
        ({"out_hidden_size": 64}, "out_hidden_size = 64 is not supported (only 128)"),
    ],
)
def test_what_no_tower_has_leaves_the_text(said: dict[str, Any], line: str) -> None:
    found = no_vision(**said)
    assert line in found and "\n" not in found


def test_a_checkpoint_without_a_tower_is_one_of_text() -> None:
    config = all_configs("SEEING")["muse_spark"]
    del config["vision_config"]
    family = family_of(config)
    assert family.vision is None and "no vision" in family.no_vision
