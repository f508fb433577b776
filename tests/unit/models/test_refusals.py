"""A config that is refused is refused for a field that it has: the one that is wrong, or one that does not fit it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from tests.support.configs.granitemoehybrid import HYBRID
from tests.support.configs.hunyuan_v1_moe import HUNYUAN
from tests.support.tiny_models import all_configs, text_of

CONFIGS = all_configs() | all_configs("SEQ2SEQ_CONFIGS")
OTHERS: list[Any] = [7, -1, None]
ABSENT = {  # what is asked for where a whole object, which had it, is none
    "sparse_attention_config": "index_n_heads",
    "dense_intermediate_size": "moe_intermediate_size",
}


def with_text(config: dict[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    if "thinker_config" in config:
        return config | {"thinker_config": with_text(config["thinker_config"], text)}
    return config | {"text_config": text} if "text_config" in config else dict(text)


def refusal_of(config: dict[str, Any]) -> str:
    try:
        family_of(copy.deepcopy(config))
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_refusal_names_a_field_that_is_there(config: dict[str, Any]) -> None:
    text = text_of(config)
    for name, value in text.items():
        for other in OTHERS:
            if name == "model_type" or other == value:
                continue
            refusal = refusal_of(with_text(config, text | {name: other}))
            words = set(re.findall(r"\w+", refusal))
            assert not refusal or words & {name, *text, ABSENT.get(name, name)}, f"{name} = {other!r}: {refusal}"
            assert "\n" not in refusal


@pytest.mark.parametrize("positions", [{"rope_type": "yarn"}, {"rope_type": "dynamic"}, {"rope_type": "longrope"}])
def test_a_type_of_positions_that_a_family_has_not_is_named(positions: dict[str, Any]) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8, "original_max_position_embeddings": 64}
    given = {"rope_theta": 1e4, "factor": 4.0, **positions} | (factors if "long" in positions["rope_type"] else {})
    refusal = refusal_of(HUNYUAN | {"rope_scaling": None, "rope_parameters": given, "head_dim": 16})
    assert repr(positions["rope_type"]) in refusal and "rope_parameters" in refusal and "only 'default'" in refusal


def test_heads_of_mamba_that_follow_from_others_are_not_blamed() -> None:
    refusal = refusal_of(HYBRID | {"mamba_d_head": "auto", "mamba_n_heads": 7})
    assert "mamba_n_heads" in refusal and "mamba_expand" in refusal and "mamba_d_head" not in refusal


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("mistral_large4 nothing listed, groups, biased, two shared experts", {"rope_theta": 500.0}, "only 10000.0"),
        ("deepseek_v3", {"head_dim": 2}, "below qk_rope_head_dim 8"),
        ("inkling2", {"swa_head_dim": 33}, "heads of an even size"),
        ("qwen3_moe dense layers by name", {"intermediate_size": 0}, "from 1 to"),
        ("nemotron_h biased", {"conv_kernel": 1}, "two or more"),
        ("step3p7", {"per_layer_config": 1}, "must be an object"),
    ],
)
def test_what_would_be_computed_otherwise_or_not_at_all_is_refused(name: str, given: dict[str, Any], said: str) -> None:
    refusal = refusal_of(with_text(CONFIGS[name], text_of(CONFIGS[name]) | given))
    assert said in refusal and next(iter(given)) in refusal
