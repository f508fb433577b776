"""Configurations as published give the sizes that their makers name, without a weight."""

from __future__ import annotations

import json

import pytest

from moeinf.models.family import family_of
from tests.support.true_configs import PUBLISHED


@pytest.mark.parametrize(
    ("name", "billions", "active", "context"),
    [
        ("deepseek-v4-flash", 284, 14, 1_048_576),
        ("deepseek-v4-pro", 1573, 50, 1_048_576),
        ("jamba-v0.1", 52, 12, 262_144),
        ("kimi-k2", 1026, 33, 131_072),
        ("kimi-k2.5", 1026, 33, 262_144),
        ("ling-lite-1.5", 17, 3, 32_768),
        ("minimax-m2.5", 229, 11, 196_608),
        ("minimax-m2.7", 229, 11, 204_800),
        ("nemotron-3-nano", 32, 4, 262_144),
        ("nemotron-3-ultra", 549, 56, 262_144),
        ("qwen3-coder-480b", 480, 35, 262_144),
        ("qwen3.5-35b-a3b", 35, 3, 262_144),
        ("qwen3-vl-30b-a3b", 31, 3, 262_144),
        ("qwen3-vl-235b-a22b", 235, 22, 262_144),
    ],
)
def test_a_published_config_gives_the_sizes_of_its_model(name: str, billions: int, active: int, context: int) -> None:
    family = family_of(json.loads((PUBLISHED / name / "config.json").read_text()))
    info = family.info("bf16")
    assert round(info.num_params / 1e9) == billions
    assert round(info.active_params / 1e9) == active
    assert info.context_length == context
