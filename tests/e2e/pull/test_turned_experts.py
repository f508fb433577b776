"""FP8 experts that lie together with their columns first, as Qwen3-VL's are published, are stored as their weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from moeinf.pull.pull import pull
from tests.support.checkpoints import content, write_tokenizer
from tests.support.tiny_models import all_configs, reference

CONFIG = all_configs()["qwen3_vl_moe"]
HIDDEN = CONFIG["text_config"]["hidden_size"]
SCALES = "_scale_inv"


def in_float8(weights: Tensor, tile: int) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of a stack of matrices, the scale of each tile, and the weights that these are."""
    count, rows, cols = weights.shape
    tall, wide = -(-rows // tile), -(-cols // tile)
    scales = torch.rand(count, tall, wide) + 0.5
    each = scales.repeat_interleave(tile, 1).repeat_interleave(tile, 2)[:, :rows, :cols]
    codes = (weights / each).to(torch.float8_e4m3fn)
    return codes, scales, (codes.float() * each).to(torch.bfloat16)


def stored(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], home: Path) -> dict[str, str]:
    folder.mkdir()
    save_file(dict(tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    write_tokenizer(folder)
    found = content(pull(str(folder), home=home).path)
    return {name: each for name, each in found.items() if not name.endswith(".json")}


@pytest.mark.parametrize(("intermediate", "tile"), [(HIDDEN // 2, 32), (48, 32), (32, 16), (HIDDEN, 64)])
@pytest.mark.parametrize("turned", [True, False], ids=["as published", "as transformers saves them"])
def test_each_expert_has_the_scales_of_its_tiles(tmp_path: Path, intermediate: int, tile: int, turned: bool) -> None:
    """Also where the tiles are as many in both directions, so that shapes tell nothing (vllm#50727)."""
    config = copy.deepcopy(CONFIG)
    config["text_config"]["moe_intermediate_size"] = intermediate
    plain: dict[str, Tensor] = {}
    coded: dict[str, Tensor] = {}
    for name, tensor in reference(config).state_dict().items():
        plain[name] = coded[name] = tensor.to(torch.bfloat16).contiguous()
        if ".experts." in name:
            weights = tensor.transpose(1, 2).contiguous() if turned else tensor
            coded[name], coded[name + SCALES], plain[name] = in_float8(weights, tile)
    float8 = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [tile, tile]}}
    assert sum(name.endswith(SCALES) for name in coded) == 6
    found, wanted = (
        stored(tmp_path / name, tensors, said, tmp_path)
        for name, tensors, said in (("coded", coded, float8), ("plain", plain, config))
    )
    assert found == wanted and len(found) > 3
