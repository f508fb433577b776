"""How the layers of a tower without attention fold patches, at sizes for which transformers wants scipy."""

from __future__ import annotations

import pytest

from moeinf.models.family import family_of
from moeinf.models.layers.vision.of_families.folding_tower import FoldingConfig
from tests.support.tiny_models import all_configs


@pytest.mark.parametrize(
    ("sizes", "scales"),
    [
        ((40, 2, 4), [(1, 1, 3), (1, 5, 128), (1, 10, 320), (1, 40, 4800), (2, 40, 9600)]),  # as published
        ((4, 2, 4), [(1, 1, 3), (1, 2, 64), (1, 4, 64), (2, 4, 128), (2, 4, 128)]),
        ((12, 1, 1), [(1, 1, 3), (1, 12, 448)]),
    ],
)
def test_scales_are_those_of_the_published_code(sizes: tuple[int, int, int], scales: list[tuple[int, ...]]) -> None:
    assert FoldingConfig(*sizes, 64, "").scales == scales


def test_a_tower_of_another_kind_leaves_the_text() -> None:
    config = all_configs("SEEING")["inkling_mm_model"]
    for name, value in (("vision_encoder_type", "linear"), ("patch_size", 1), ("decoder_dmodel", 32)):
        family = family_of(config | {"vision_config": config["vision_config"] | {name: value}})
        assert family.vision is None and name in family.no_vision
