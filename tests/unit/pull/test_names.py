"""Tensors are found behind whatever prefix a checkpoint gives them: text alone, whole wrappers, prunings, exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.errors import CheckpointError
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensor_names import Names
from moeinf.store.library import StoredModel
from moeinf.types import TensorPlan
from tests.support.checkpoints import CONFIG as QWEN3
from tests.support.checkpoints import Checkpoint, content, in_fp8, random_tensors, write_checkpoint
from tests.support.configs.qwen3_5_moe import QWEN3_5, SEEING
from tests.support.pairs.pulled import pulled
from tests.support.tiny_models import all_configs

PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "language_model.", "transformer.", "a.b.c.")
EVERY = all_configs() | all_configs("SEQ2SEQ_CONFIGS")
FIRST = {config["model_type"]: config for config in reversed(EVERY.values())}  # one config of each family
TEXT = QWEN3_5["text_config"] | {"model_type": "qwen3_5_moe"}
OTHERS = (
    "model.visual.blocks.0.norm1.weight",
    "model.visual.norm.weight",
    "mtp.norm.weight",
    "mtp.layers.0.norm.weight",
)


def plan_of(config: dict[str, Any]) -> TensorPlan:
    return family_of(config).tensors


def names_of(plan: TensorPlan) -> list[str]:
    return [*plan.dense, *plan.experts[0]]


def moved(name: str, plan: TensorPlan, prefix: str, in_front_of_head: str) -> str:
    """What a tensor of the plan is called in a checkpoint with another prefix."""
    wanted, head = Names((), plan).wanted, f"{plan.own_head}".removesuffix("weight")
    if name.startswith(head):
        return in_front_of_head + head.split(".")[-2] + "." + name.removeprefix(head)
    return prefix + name.removeprefix(wanted) if name.startswith(wanted) else name


def fronts(prefix: str) -> list[str]:
    """Where the head may be: outside, inside, and one level up."""
    parts = prefix.split(".")[:-1]
    return sorted({".".join([*parts[:count], ""]) for count in range(len(parts) + 1)})


@pytest.mark.parametrize("model_type", FIRST)
def test_every_family_finds_its_tensors_behind_every_prefix(model_type: str) -> None:
    plan = plan_of(FIRST[model_type])
    known = names_of(plan)
    for prefix in PREFIXES:
        for front in fronts(prefix):
            stored = [moved(name, plan, prefix, front) for name in known]
            names = Names(stored, plan)
            assert [names(name) for name in stored] == known, (prefix, front)
            assert (names.remark == "") == (names.found == names.wanted)


def test_tensors_of_other_models_stay_where_they_are() -> None:
    for config in (QWEN3_5, TEXT):
        plan = plan_of(config)
        for prefix in ("model.", "model.language_model.", "language_model.model.", "a.b.c."):
            stored = [moved(name, plan, prefix, "") for name in names_of(plan)]
            names = Names([*stored, *OTHERS, *plan.vision], plan)
            assert [names(name) for name in (*OTHERS, *plan.vision)] == [*OTHERS, *plan.vision], prefix


@pytest.mark.parametrize("prefix", ["model.", "", "language_model.model."])
def test_a_tower_is_found_with_model_before_its_name_and_without(prefix: str) -> None:
    config = SEEING["qwen3_5_moe"]
    plan = plan_of(config)
    assert plan.vision
    stored = [moved(name, plan, prefix, "") for name in names_of(plan)]
    towers = [name.removeprefix("model.") for name in plan.vision]
    names = Names([*stored, *towers], plan)
    assert [names(name) for name in (*stored, *towers)] == [*names_of(plan), *plan.vision]


def test_names_of_a_stranger_take_no_time() -> None:
    plan = plan_of(QWEN3)
    hostile = ["." * 1_000_000, "a." * 500_000 + "norm.weight", "lm_head." * 100_000, "x" * 1_000_000]
    names = Names(hostile, plan)
    assert [len(names(name)) <= len(name) + 100 for name in hostile] == [True] * 4


def weights(folder: Path, tensors: Checkpoint, config: Any) -> dict[str, str]:
    stored: StoredModel = pulled(write_checkpoint(folder / "c", tensors, config))[0]
    return {name: sum for name, sum in content(stored.path).items() if name.endswith((".bin", ".safetensors"))}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("config", [QWEN3, QWEN3_5, TEXT], ids=["qwen3", "wrapper", "text"])
def test_a_checkpoint_is_pulled_behind_every_prefix(config: dict[str, Any], prefix: str, tmp_path: Path) -> None:
    plan, plain = plan_of(config), random_tensors(config)
    shipped = plain if config is not QWEN3 else in_fp8(plain)[0]  # names of its parts come along
    if config is QWEN3:
        config = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    found = {moved(name, plan, prefix, fronts(prefix)[-1]): tensor for name, tensor in shipped.items()}
    assert weights(tmp_path / "a", found, config) == weights(tmp_path / "b", shipped, config)


@pytest.mark.parametrize("prefix", PREFIXES[2:])
def test_a_refusal_says_which_prefix_was_found_and_which_was_looked_for(prefix: str, tmp_path: Path) -> None:
    plan = plan_of(QWEN3)
    tensors = {moved(name, plan, prefix, ""): tensor for name, tensor in random_tensors().items()}
    del tensors[f"{prefix}norm.weight"]
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight'") as caught:
        pulled(write_checkpoint(tmp_path / "c", tensors))
    assert f"its tensors begin with {prefix!r}, which was read as 'model.'" in str(caught.value)


def test_names_of_another_kind_are_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    tensors = {f"transformer.h.{number}.weight": torch.zeros(1) for number in range(9)}
    with pytest.raises(CheckpointError) as caught:
        pulled(write_checkpoint(tmp_path / "c", tensors))
    assert "looked for behind 'model.'; most of its tensors begin with 'transformer.'" in str(caught.value)


def test_a_tensor_under_two_names_is_refused_with_both(tmp_path: Path) -> None:
    tensors = random_tensors()
    with pytest.raises(CheckpointError) as caught:
        pulled(write_checkpoint(tmp_path / "c", tensors | {"model.lm_head.weight": tensors["lm_head.weight"] * 2}))
    assert "'model.lm_head.weight' is also in" in str(caught.value) and "as 'lm_head.weight'" in str(caught.value)
