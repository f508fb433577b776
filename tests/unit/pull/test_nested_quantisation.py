"""How weights are coded may be said of the whole checkpoint, or of its language model alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.pull.coded.declared import NOTHING, declared_by
from moeinf.pull.pull import pull
from tests.support.checkpoints import content, in_fp8, random_tensors, write_checkpoint
from tests.support.tiny_models import all_configs

FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
FAMILIES = ("qwen3_vl_moe", "qwen3_5_moe", "kimi_k25")


@pytest.mark.parametrize("said", [FP8, AWQ])
@pytest.mark.parametrize(
    "path", [(), ("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config")]
)
def test_the_object_of_the_language_model_is_read_where_the_outer_one_says_nothing(
    said: dict[str, Any], path: tuple[str, ...]
) -> None:
    config: dict[str, Any] = {"quantization_config": said}
    for name in reversed(path):
        config = {name: config, "vision_config": {}}
    assert declared_by(config) == declared_by({"quantization_config": said}) != NOTHING
    outer = config | {"quantization_config": {"quant_method": "bitsandbytes"}}
    assert declared_by(outer).method == "bitsandbytes" or not path


def test_what_is_said_of_a_tower_is_not_said_of_the_language_model() -> None:
    assert declared_by({"vision_config": {"quantization_config": FP8}, "text_config": None}) == NOTHING


@pytest.mark.parametrize("family", FAMILIES)
def test_fp8_in_tiles_is_read_wherever_config_json_says_so(family: str, tmp_path: Path) -> None:
    config = next(each for each in all_configs().values() if each["model_type"] == family)
    shipped, _ = in_fp8(random_tensors(config), (32, 32))
    inner = config | {"text_config": config["text_config"] | {"quantization_config": FP8}}
    found = []
    for name, said in (("outer", config | {"quantization_config": FP8}), ("inner", inner)):
        folder = write_checkpoint(tmp_path / name, shipped, said)
        stored = pull(str(folder), PullOptions(name=name), home=tmp_path / "home")
        found.append({file: digest for file, digest in content(stored.path).items() if not file.endswith(".json")})
    assert found[0] == found[1] != {}
