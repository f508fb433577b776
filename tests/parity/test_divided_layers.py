"""Layers on several devices give what they give on one; what belongs to another device has no memory to be read."""

from __future__ import annotations

import pytest

from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily
from tests.support.divided import same_logits
from tests.support.tiny_models import all_configs

FAMILIES = {name: (family_of(config), config) for name, config in all_configs().items()}
DIVISIBLE = [name for name, (family, _) in FAMILIES.items() if isinstance(family, DecoderFamily) and family.divisible]


@pytest.mark.parametrize("name", DIVISIBLE)
def test_layers_give_the_same_wherever_they_are_divided(name: str) -> None:
    family, config = FAMILIES[name]
    assert isinstance(family, DecoderFamily)
    assert same_logits(family, config)
