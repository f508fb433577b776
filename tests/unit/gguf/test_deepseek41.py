"""A GGUF file of DeepSeek-V4.1, with the names and metadata that public converters write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import CheckpointError, MoeinfError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.header import read_gguf
from moeinf.models.family import family_of
from tests.support.configs.deepseek_v41 import DEEPSEEK_V41
from tests.support.deepseek41_gguf import TEXT, write_deepseek41
from tests.support.facts import declared, facts


def meant(config: dict[str, Any]) -> dict[str, Any]:
    return dict(facts(declared(config)))


def test_a_file_means_what_the_checkpoint_does(tmp_path: Path) -> None:
    found = read_gguf(write_deepseek41(tmp_path / "model.gguf", {}))
    made = config_of(found)
    assert meant(made) == meant(DEEPSEEK_V41)
    placed = places_of(found, family_of(made).tensors)
    assert placed.dense.keys() == family_of(DEEPSEEK_V41).tensors.dense.keys()
    assert len(placed.experts) == 7


def test_what_a_file_does_not_say_is_seen_in_tensors_or_as_published(tmp_path: Path) -> None:
    named = ("kv_source_layer_ids", "index_source_layer_ids", "candidate_source_layer_id")
    unsaid = {f"attention.{name}": None for name in (*named, "candidate_topk_blocks", "candidate_block_size")}
    made = config_of(read_gguf(write_deepseek41(tmp_path / "model.gguf", unsaid)))
    text = TEXT | {"candidate_topk_blocks": 2048, "candidate_block_size": 8}
    assert meant(made) == meant(DEEPSEEK_V41 | {"text_config": text})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"expert_gating_func": 2}, "expert_gating_func"),
        ({"expert_weights_norm": False}, "expert_weights_norm"),
        ({"hash_layer_count": 1}, "hash_layer_count"),
        ({"swiglu_clamp_shexp": [0.5] * 7}, "swiglu_clamp_shexp"),
        ({"engram.offsets": [0] * 12}, "engram.offsets"),
        ({"engram.pad_id": 40}, "engram names"),
        ({"engram.layer_ids": [1, 3]}, "engram names"),
        ({"engram.multipliers": [1, 3, 5]}, "engram_multipliers"),
        ({"attention.compress_ratios": [0, 2, 2, 2, 1, 1, 1, 0]}, "compress_ratios"),
        ({"attention.something_new": 3}, "something_new"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_metadata_mean_otherwise_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(MoeinfError, match=words):
        family_of(config_of(read_gguf(write_deepseek41(tmp_path / "model.gguf", changed))))


def test_a_file_that_lacks_a_part_of_its_tables_is_refused(tmp_path: Path) -> None:
    found = read_gguf(write_deepseek41(tmp_path / "model.gguf", {}, without="blk.4.engram_q.weight"))
    with pytest.raises(CheckpointError, match=r"blk\.4\.engram_q"):
        places_of(found, family_of(config_of(found)).tensors)
