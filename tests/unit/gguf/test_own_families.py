"""Families that the converter of the record does not know, with the names and metadata that llama.cpp's writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.errors import MoeinfError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.header import read_gguf
from moeinf.gguf.undo import Kind, SideBySide, Stored, outcome, undone
from moeinf.models.family import family_of
from tests.support.facts import declared, facts
from tests.support.own_gguf import WRITTEN, drawn_small, write_own

AS_STORED: dict[str, dict[str, Any]] = {  # what is stored in another way than in a checkpoint
    "dots3_note": {"latents_scaled": False},
    "grove_moe": {"small_experts_apart": True},
    "grok": {"attn_output_multiplier": 24**-0.5},
}


@pytest.mark.parametrize("family", WRITTEN)
def test_a_file_means_what_the_checkpoint_does(family: str, tmp_path: Path) -> None:
    found = read_gguf(write_own(tmp_path / "model.gguf", family, drawn_small(family)))
    made = config_of(found)
    ours = dict(facts(declared(made)))
    theirs = dict(facts(declared({**WRITTEN[family].config, **AS_STORED.get(family, {})})))
    assert ours.keys() == theirs.keys()
    for field, value in theirs.items():
        wanted = pytest.approx(value, rel=1e-6) if isinstance(value, float | list) else value
        assert ours[field] == wanted, field
    plan = family_of(made).tensors
    placed = places_of(found, plan)
    assert placed.dense.keys() == plan.dense.keys() and len(placed.experts) == plan.moe.num_layers


@pytest.mark.parametrize(
    ("family", "changed", "words"),
    [
        ("grove_moe", {"experts_per_group": 3}, "groups of 3"),
        ("grove_moe", {"experts_per_group": 4}, "chexps"),
        ("grove_moe", {"expert_chunk_feed_forward_length": 8}, "chexps"),
        ("grove_moe", {"expert_group_scale": -1.0}, "expert_group_scale"),
        ("grove_moe", {"expert_weights_norm": False}, "norm_topk_prob"),
        ("dots3_note", {"attention.head_count": [4, 2, 3, 2]}, "attention.head_count"),
        ("dots3_note", {"attention.kv_lora_rank_swa": 20}, "attn_"),
        ("dots3_note", {"expert_gating_func": 1}, "expert_gating_func"),
        ("grok", {"expert_gating_func": 2}, "expert_gating_func"),
        ("grok", {"expert_weights_norm": True}, "expert_weights_norm"),
        ("grok", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
        ("grok", {"feed_forward_length": 40}, "ffn_"),
    ],
)
def test_what_metadata_mean_otherwise_is_refused_by_name(
    family: str, changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    found = read_gguf(write_own(tmp_path / "model.gguf", family, drawn_small(family), changed))
    with pytest.raises(MoeinfError, match=words):
        places_of(found, family_of(config_of(found)).tensors)


def test_columns_of_a_stack_of_matrices_come_beside_each_other() -> None:
    values = np.arange(24, dtype=np.float32)
    kind = Kind("f32", (3, 2, 4))
    found = undone([Stored(kind, values.view(np.uint8))], (SideBySide(),))
    assert found.kind == Kind("f32", (2, 12))
    assert np.array_equal(found.data.view(np.float32).reshape(2, 12), np.hstack(list(values.reshape(3, 2, 4))))
    assert outcome([Kind("q8_0", (3, 2, 64))], (SideBySide(),)) == Kind("q8_0", (2, 192))
