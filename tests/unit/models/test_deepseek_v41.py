"""What only DeepSeek-V4.1 has: rounded rows, the numbers that choose rows of tables, fields that go together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.cpu.math import NumpyMath
from moeinf.models.family import family_of
from moeinf.models.fields import Fields
from moeinf.models.gpu.math import TorchMath
from moeinf.models.layers.latent.rounding import Rounding
from moeinf.models.layers.streams.engram import EngramConfig
from tests.oracles import deepseek_v41 as oracle
from tests.support.configs.deepseek_v41 import CONFIGS

ALONE = CONFIGS["deepseek_v41 no candidates"]
PUBLISHED = {
    "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682],
    "engram_vocab_size": 16000000,
    "engram_compressed_vocab_size": 99092,
}


def rows() -> torch.Tensor:
    """Of all sizes, with numbers half way between two that are kept, zeros and the largest."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn((200, 64), generator=generator) * 2.0 ** torch.randint(-20, 20, (200, 1), generator=generator)
    x[:4] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 8) * torch.tensor([[1.0], [-1.0], [4.0], [0.5]])
    x[4:6], x[6, ::3] = 0, 0
    return x


@pytest.mark.parametrize("kind", ["window_rows", "entries", "index_keys"])
def test_rows_are_rounded_as_torch_rounds_them(kind: str) -> None:
    x = rows()
    expected = {"window_rows": oracle.window_row, "entries": oracle.entry, "index_keys": oracle.index_key}[kind](x)
    on_cpu = Rounding[np.ndarray](NumpyMath(), True, lambda x: np.frexp(x)[0], np.rint)
    on_device = Rounding[torch.Tensor](
        TorchMath(torch.device("cpu")), True, lambda x: torch.frexp(x).mantissa, torch.round
    )
    assert torch.equal(torch.from_numpy(getattr(on_cpu, kind)(x.numpy())), expected)
    assert torch.equal(getattr(on_device, kind)(x), expected)
    assert not torch.equal(expected, x)
    assert torch.equal(getattr(on_device, kind)(x[:, :40]), x[:, :40]), "no whole number of blocks"


def test_rows_of_the_published_tables_are_chosen_by_the_published_numbers() -> None:
    """As public converters have them (tests of deepseek41 in ds4)."""
    config = EngramConfig.of(Fields(PUBLISHED), 129280, 40)
    assert config is not None
    assert config.primes[0][:3] == (16000057, 16000079, 16000081)
    assert config.primes[1][-3:] == (16000877, 16000879, 16000889)
    assert [sum(primes) for primes in config.primes] == PUBLISHED["engram_num_embeddings"]
    assert config.multipliers == (
        (76632096046245, 4839876093313, 35959672319349, 73987337458391),
        (67716810739261, 51510806800915, 30921347202721, 82619226485591),
    )


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"gate_temp": 2.0}, UnsupportedModelError, "gate_temp"),
        ({"scoring_func": "softmax"}, UnsupportedModelError, "scoring_func"),
        ({"topk_method": "greedy"}, UnsupportedModelError, "topk_method"),
        ({"norm_topk_prob": False}, UnsupportedModelError, "norm_topk_prob"),
        ({"n_shared_experts": 2}, UnsupportedModelError, "n_shared_experts"),
        ({"attention_bias": True}, UnsupportedModelError, "attention_bias"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({"compress_ratios": [1, 1]}, CheckpointError, "compress_ratios"),
        ({"compress_ratios": [1, 1, 2]}, CheckpointError, "kv_source_layer_ids"),
        ({"kv_source_layer_ids": [1]}, CheckpointError, "kv_source_layer_ids"),
        ({"kv_source_layer_ids": []}, CheckpointError, "kv_source_layer_ids"),
        ({"index_source_layer_ids": [0, 3]}, CheckpointError, "index_source_layer_ids"),
        ({"kv_source_layer_ids": [0, 1]}, CheckpointError, "index_source_layer_ids"),
        ({"candidate_source_layer_id": 1}, UnsupportedModelError, "candidate_source_layer_id"),
        (
            {"kv_source_layer_ids": [0, 1], "index_source_layer_ids": [0, 1], "candidate_source_layer_id": 0},
            UnsupportedModelError,
            "candidate_source_layer_id",
        ),
        ({"engram_layer_ids": [3]}, CheckpointError, "engram_layer_ids"),
        ({"engram_num_embeddings": [100]}, CheckpointError, "engram_num_embeddings"),
        ({"engram_num_embeddings": [960, 960]}, CheckpointError, "engram_num_embeddings"),
        ({"engram_token_map": [0, 40]}, CheckpointError, "engram_token_map"),
        ({"engram_compressed_vocab_size": 41}, CheckpointError, "engram_compressed_vocab_size"),
        ({"engram_pad_token_id": 97}, CheckpointError, "engram_pad_token_id"),
        ({"index_head_dim": 4}, CheckpointError, "index_head_dim"),
        ({"o_groups": 3}, CheckpointError, "o_groups"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_followed_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    family_of(ALONE)
    with pytest.raises(error, match=words):
        family_of(ALONE | changed)


@pytest.mark.parametrize("name", ["compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"])
def test_a_config_without_what_layers_share_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        family_of({key: value for key, value in ALONE.items() if key != name})
