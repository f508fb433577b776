"""Grok: other names of the same checkpoint, a checkpoint in shares, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensor_names import plan_name
from moeinf.pull.pull import pull
from moeinf.types import DType
from tests.support.checkpoints import content, random_tensors, write_checkpoint
from tests.support.configs.grok import GROK


@pytest.mark.parametrize("changed", [{"model_type": "git"}, {"model_type": "grok-1"}])
def test_the_types_that_published_configs_name_are_the_family(changed: dict[str, Any]) -> None:
    assert family_of(GROK | changed).name == "grok"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rope_type": "yarn"}, "rope_type"),
        ({"attn_logit_softcapping_method": "clip"}, "attn_logit_softcapping_method"),
        ({"sliding_window_size": 128}, "sliding_window_size"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"embedding_multiplier_scale": None}, "embedding_multiplier_scale is missing"),
        ({"num_local_experts": None}, "num_local_experts"),
    ],
)
def test_what_a_field_means_otherwise_is_refused_by_name(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        family_of(GROK | changed)


@pytest.mark.parametrize(("length", "context"), [(1024, 1025), (-1, 131072), (None, 131072), (1 << 20, 131072)])
def test_the_context_ends_where_scores_would_be_sharpened(length: int | None, context: int) -> None:
    config = GROK | {"max_position_embeddings": 131072, "attn_temperature_len": length}
    dtype: DType = "bf16"
    assert family_of(config).info(dtype).context_length == context


def of_hpcai(name: str) -> str:
    for ours, theirs in (("w1", "linear"), ("w3", "linear_v"), ("w2", "linear_1")):
        name = re.sub(rf"(experts\.\d+)\.{ours}\.", rf"\1.{theirs}.", name)
    return name.replace(".block_sparse_moe.", ".moe_block.").replace(".self_attn.", ".attn.")


def test_other_names_of_the_tensors_are_known() -> None:
    plan = family_of(GROK).tensors
    for name in (*plan.dense, *plan.experts[0]):
        assert plan_name(of_hpcai(name), plan) == name


def weights(folder: Path) -> dict[str, str]:
    return {name: each for name, each in content(folder).items() if name.endswith((".bin", ".safetensors"))}


def shared_out(tensors: dict[str, Tensor], ranks: int) -> dict[str, dict[str, Tensor]]:
    """As Grok-2 is published: experts in shares, in files whose order is not that of the ranks."""
    files = {f"m-{9 - rank:05d}-TP-{rank:03d}.safetensors": dict[str, Tensor]() for rank in range(ranks)}
    files["m-00000-TP-common.safetensors"] = {n: t for n, t in tensors.items() if ".experts." not in n}
    for name, tensor in tensors.items():
        if ".experts." in name:
            shares = tensor.chunk(ranks, 1 if ".w2." in name else 0)
            for rank, share in enumerate(shares):
                files[f"m-{9 - rank:05d}-TP-{rank:03d}.safetensors"][name] = share.contiguous()
    return files


def test_a_checkpoint_in_shares_gives_the_same_store(tmp_path: Path) -> None:
    tensors = random_tensors(GROK)
    wanted = weights(pull(str(write_checkpoint(tmp_path / "a" / "c", tensors, GROK)), home=tmp_path / "home").path)
    folder = write_checkpoint(tmp_path / "b" / "c", tensors, GROK, num_shards=0)
    (folder / "model.safetensors").unlink()
    for file, part in shared_out(tensors, 4).items():
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
    assert weights(pull(str(folder), home=tmp_path / "other").path) == wanted


@pytest.mark.parametrize("lost", [1, 3])
def test_a_share_that_is_not_there_is_one_line(lost: int, tmp_path: Path) -> None:
    tensors = random_tensors(GROK)
    folder = write_checkpoint(tmp_path / "c", tensors, GROK, num_shards=0)
    (folder / "model.safetensors").unlink()
    for file, part in shared_out(tensors, 4).items():
        if f"TP-{lost:03d}" not in file:
            safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="in each of 3 files"):
        pull(str(folder), home=tmp_path / "home")


def test_no_rank_holds_what_another_does() -> None:
    parts = list(shared_out(random_tensors(GROK), 4).values())
    assert len({name for part in parts for name in part}) < sum(map(len, parts))
    assert torch.equal(parts[-1]["model.norm.weight"], random_tensors(GROK)["model.norm.weight"])
