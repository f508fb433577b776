"""Every family whose layers may be divided among devices gives the same for every border."""

from __future__ import annotations

import pytest

from moeinf.models.family import DecoderFamily, family_of
from tests.support.divided import same_logits
from tests.support.tiny_models import all_configs

CONFIGS = all_configs()


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_give_the_same_wherever_they_are_divided(name: str) -> None:
    family = family_of(CONFIGS[name])
    if not isinstance(family, DecoderFamily) or not family.divisible:
        pytest.skip("its layers stay on one device")
    assert same_logits(family, CONFIGS[name])
