"""Attention within a band around each patch against one matrix of all scores; blocks that no config.json may have."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.models.family import family_of
from moeinf.models.layers.vision.of_families.banded import banded
from tests.support.tiny_models import all_configs


@pytest.mark.parametrize(("count", "reach"), [(1, 4), (50, 9), (300, 64), (257, 1), (400, 1000)])
def test_a_band_is_a_part_of_all_scores(count: int, reach: int) -> None:
    random = np.random.default_rng(count)
    q, k, v = (random.standard_normal((count, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    sinks = random.standard_normal(4).astype(np.float32) * 3
    scores = np.einsum("qhd,khd->hqk", q, k.repeat(2, 1)) / 8**0.5
    scores[..., 0] += sinks[:, None]
    places = np.arange(count)
    scores = np.where(np.abs(places[:, None] - places) > reach, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    wanted = np.einsum("hqk,khd->qhd", weights, v.repeat(2, 1)).reshape(count, -1)
    assert np.abs(banded(q, k, v, sinks, reach) - wanted).max() < 1e-5


@pytest.mark.parametrize("kinds", [None, [-1, 0, 1, 1], [-1, 0, 2, 1, -1], "all"])
def test_kinds_of_blocks_that_are_none_leave_the_text(kinds: object) -> None:
    config = all_configs("SEEING")["mimo_v2"]
    config["vision_config"]["vit_window_attn_types"] = kinds
    family = family_of(config)
    assert family.vision is None
    assert family.no_vision.endswith("vit_window_attn_types must be -1, 0 or 1 for each of 5 blocks")
