"""A GGUF file of Kimi K3, with the names and metadata that llama.cpp's converter writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import MoeinfError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.header import read_gguf
from moeinf.models.family import family_of
from tests.support.configs.kimi_k3 import KIMI_K3
from tests.support.facts import declared, facts
from tests.support.kimi_k3_gguf import published_k3, write_kimi_k3


def meant(config: dict[str, Any]) -> dict[str, Any]:
    return dict(facts(declared(config)))


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"q_lora_rank": None, "mla_use_output_gate": False, "latent_moe_use_norm": False},
        {
            "routed_expert_hidden_size": None,
            "activation_situ_linear_beta": None,
            "num_expert_group": 4,
            "topk_group": 2,
        },
        {"linear_attn_config": KIMI_K3["text_config"]["linear_attn_config"] | {"gate_lower_bound": None}},
        {"linear_attn_config": KIMI_K3["text_config"]["linear_attn_config"] | {"use_full_rank_gate": False}},
    ],
    ids=lambda other: " ".join(other),
)
def test_a_file_means_what_the_checkpoint_does(tmp_path: Path, other: dict[str, Any]) -> None:
    config = KIMI_K3 | {"text_config": KIMI_K3["text_config"] | other}
    found = read_gguf(write_kimi_k3(tmp_path / "model.gguf", published_k3(config), {}, config))
    made = config_of(found)
    assert meant(made) == meant(config)
    placed = places_of(found, family_of(made).tensors)
    of_whole = {name.removeprefix("language_model.") for name in family_of(config).tensors.dense}
    assert placed.dense.keys() == of_whole and len(placed.experts) == 4


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"attn_res.block_size": None}, "attn_res.block_size"),
        ({"activation.situ_beta": None}, "activation.situ_beta"),
        ({"activation.situ_linear_beta": None}, "activation.situ_linear_beta"),
        ({"activation.situ_gamma": 1.0}, "situ_gamma"),
        ({"kda.gate_lower_bound": 5.0}, "gate_lower_bound"),
        ({"expert_gating_func": 1}, "expert_gating_func"),
        ({"expert_latent_length": 16}, "ffn_routed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_metadata_mean_otherwise_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    found = read_gguf(write_kimi_k3(tmp_path / "model.gguf", published_k3(), changed))
    with pytest.raises(MoeinfError, match=words):
        places_of(found, family_of(config_of(found)).tensors)
