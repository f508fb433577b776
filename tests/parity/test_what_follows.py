"""Tensors that follow from config.json are compared with it: they are let pass where they agree, and else refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from moeinf.errors import CheckpointError
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint, write_tokenizer
from tests.support.pairs.decoders import CONFIGS
from tests.support.pairs.pulled import change, pulled, stored_names, written
from tests.support.pairs.translators import Pair
from tests.support.tiny_models import all_configs

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
PLACES = [
    "model.layers.0.self_attn.rotary_emb.inv_freq",
    "model.rotary_emb.inv_freq",
    "model.rotary_emb.original_inv_freq",
]


def frequencies(kind: str) -> Tensor:
    """As transformers computes them."""
    from transformers import Qwen3MoeConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind == "plain":
        return 1.0 / 10000.0 ** (torch.arange(0, 16, 2) / 16)
    config = Qwen3MoeConfig(
        **{name: value for name, value in CONFIG.items() if name != "rope_theta"}, rope_parameters=YARN
    )
    found: Tensor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))[0]
    return found


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "yarn"])
def test_frequencies_that_are_those_of_config_json_are_left_out(
    kind: str, dtype: torch.dtype, name: str, tmp_path: Path
) -> None:
    for config in [CONFIG, CONFIG | {"rope_parameters": YARN}][kind == "yarn" :]:  # stretched, or as they were before
        write_checkpoint(tmp_path / "c", random_tensors() | {name: frequencies(kind).to(dtype)}, config)
        assert not any("inv_freq" in each for each in stored_names(pulled(tmp_path / "c")[0]))


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("wrong", ["another base", "one of them", "too many", "whole numbers", "stretched"])
def test_other_frequencies_are_refused_by_name(wrong: str, name: str, tmp_path: Path) -> None:
    plain = frequencies("plain")
    others = {
        "another base": 1.0 / 20000.0 ** (torch.arange(0, 16, 2) / 16),
        "one of them": torch.cat((plain[:-1], plain[-1:] * 1.01)),
        "too many": torch.cat((plain, plain[-1:])),
        "whole numbers": torch.zeros(8, dtype=torch.int64),
        "stretched": frequencies("yarn"),
    }
    write_checkpoint(tmp_path / "c", random_tensors() | {name: others[wrong]})
    with pytest.raises(CheckpointError, match=f"tensor '{name}': has other numbers than follow from config.json"):
        pulled(tmp_path / "c")


@pytest.mark.parametrize("family", ["minimax", "qwen4_exp"])
def test_tables_that_published_code_loads_are_compared(family: str, tmp_path: Path) -> None:
    config = next(each for each in CONFIGS.values() if each["model_type"] == family)
    written(config, tmp_path / "c")
    pulled(tmp_path / "c")  # as transformers has saved them
    tensors = safetensors.torch.load_file(tmp_path / "c" / "model.safetensors")
    ends = ("slope_rate", "query_decay", "key_decay", "diagonal_decay", "multipliers", "vocab_sizes", "heads_offsets")
    tables = [name for name in tensors if name.endswith(ends)]
    assert len({name.rpartition(".")[2] for name in tables}) >= 3
    for name in tables:
        other = tensors[name].clone()
        other.view(-1)[-1] += 1
        change(tmp_path / "c", lambda found, name=name, other=other: tensors | {name: other})  # type: ignore[misc]
        with pytest.raises(CheckpointError, match="has other numbers than follow"):
            pulled(tmp_path / "c")


def test_positions_of_nllb_are_compared(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    theirs = Pair(all_configs("SEQ2SEQ_CONFIGS")["nllb"], folder).theirs
    (folder / "tokenizer_config.json").write_text("{}")
    write_tokenizer(folder)
    name, table = "model.encoder.embed_positions.weights", theirs.model.encoder.embed_positions.weights.clone()
    change(folder, lambda tensors: tensors | {name: table})
    pulled(folder)
    table[5, 3] += np.float32(0.01)
    change(folder, lambda tensors: tensors | {name: table})
    with pytest.raises(CheckpointError, match="has other numbers than follow"):
        pulled(folder)
