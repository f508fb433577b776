"""Which card computes which layers."""

from __future__ import annotations

from itertools import product

import pytest

from moeinf.engine.cards.stages import Stage, first_layers, layer_of
from tests.support.footprints import FOOTPRINT


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.11.self_attn.q_proj.weight", 11),
        ("model.layers.2.mlp.shared_experts.0.up_proj.weight", 2),
        ("model.norm.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_a_tensor_is_its_layer_s(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer
    first, second = Stage(range(5), FOOTPRINT), Stage(range(5, 12), FOOTPRINT)
    assert first.lacks(name) == (layer == 11) and second.lacks(name) == (layer != 11)


def test_layers_are_divided_in_proportion_to_memory() -> None:
    assert first_layers([10.0] * 12, 0, [100, 100]) == [0, 6]
    assert first_layers([10.0] * 12, 0, [300, 100]) == [0, 9]
    assert first_layers([10.0] * 12, 40, [100, 100]) == [0, 4]  # the first has the head
    assert first_layers([10.0] * 12, 0, [100, 100, 200]) == [0, 3, 6]
    assert first_layers([50.0, 50.0] + [10.0] * 10, 0, [100, 100]) == [0, 2]


def test_every_card_gets_a_layer() -> None:
    for rooms in product((1, 1000), repeat=3):
        for outside in (0, 10_000):
            starts = first_layers([1.0, 100.0, 1.0], outside, rooms)
            assert starts == [0, 1, 2]
