"""Layers on several devices give what they give on one; what belongs to another device has no memory to be read."""

from __future__ import annotations

import pytest

from moeinf.models.family import DecoderFamily, family_of
from tests.support.divided import same_logits
from tests.support.tiny_models import all_configs

CONFIGS = all_configs()
KINDS = "mixtral", "deepseek_v3", "qwen3_next", "jamba", "lfm2_moe", "gemma4"  # of attention; tests/ranks has all


@pytest.mark.parametrize("name", KINDS)
def test_layers_give_the_same_wherever_they_are_divided(name: str) -> None:
    family = family_of(CONFIGS[name])
    assert isinstance(family, DecoderFamily) and family.divisible
    assert same_logits(family, CONFIGS[name])


def test_families_whose_layers_share_more_are_known() -> None:
    """A family that is added says so, or is held to the test of all families."""
    families = {config["model_type"]: family_of(config) for config in CONFIGS.values()}
    shares = {name for name, each in families.items() if isinstance(each, DecoderFamily) and not each.divisible}
    nemotron = {"nemotron_h", "nemotron_h_omni", "nemo_speechlm"}
    indexed = {"deepseek_v4", "glm5_next", "hy_v4", "hy_v4_vl", "qwen4_exp", "glm_moe_dsa", "mistral_large4"}
    inkling = {"inkling_mm_model", "inkling2", "inkling2_loop"}
    assert shares == nemotron | indexed | inkling | {"longcat_flash", "zaya"}
