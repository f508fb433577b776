"""The tower of a checkpoint that sees is kept as it was published, in a file that pictures alone have read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from moeinf.config.pull_options import PullOptions
from moeinf.errors import CheckpointError, StoreError
from moeinf.pull.pull import pull
from moeinf.store import manifest as manifests
from moeinf.store.library import StoredModel
from moeinf.store.verify import verify
from moeinf.terminal.stored.show import show_json, show_lines
from tests.support.seeing_models import FAMILIES, seeing_config, write_seeing


def pulled(folder: Path, changed: Any = None, family: str = "qwen3_5_moe", quant: str = "keep") -> StoredModel:
    """changed: takes the tensors of the checkpoint, which it may change."""
    source = write_seeing(folder / "source", family)
    if changed is not None:
        tensors = safetensors.torch.load_file(source / "model.safetensors")
        changed(tensors)
        safetensors.torch.save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return pull(str(source), PullOptions(quant=quant), home=folder / "home")


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_kept_bit_for_bit_beside_what_is_quantised(family: str, tmp_path: Path) -> None:
    stored = pulled(tmp_path, family=family, quant="q8_0")
    whole = safetensors.torch.load_file(tmp_path / "source" / "model.safetensors")
    kept = safetensors.torch.load_file(stored.path / "vision.safetensors")
    marks = ("visual.", "vision_tower.", "embed_vision.")
    assert kept.keys() == {name for name in whole if any(mark in name for mark in marks)} != set()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in kept.items())
    entry = stored.manifest.vision
    assert entry is not None and json.loads((stored.path / "manifest.json").read_text())["version"] == 6
    assert json.loads(show_json(stored))["moe"]["vision_bytes"] == entry.num_bytes
    assert "vision" in json.loads(show_json(stored))["capabilities"]
    assert any("vision tower" in line and "for pictures alone" in line for line in show_lines(stored))
    assert verify(stored) == []


def test_the_settings_of_the_image_processor_come_along(tmp_path: Path) -> None:
    assert (pulled(tmp_path / "a").path / "preprocessor_config.json").is_file()
    assert (pulled(tmp_path / "b", family="gemma4").path / "processor_config.json").is_file()


def test_verify_finds_damage_and_adds_sums_that_are_missing(tmp_path: Path) -> None:
    stored = pulled(tmp_path)
    path = stored.path / "vision.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert verify(stored) == ["vision.safetensors does not match its checksum"]


def test_a_checkpoint_with_half_a_tower_is_refused(tmp_path: Path) -> None:
    name = "model.visual.blocks.1.attn.qkv.bias"
    with pytest.raises(CheckpointError, match=rf"lacks tensor '{name}' \(vision tower\)"):
        pulled(tmp_path, lambda tensors: tensors.pop(name))


def test_a_tower_of_another_shape_is_refused(tmp_path: Path) -> None:
    name = "model.visual.merger.norm.bias"
    with pytest.raises(CheckpointError, match=rf"'{name}' has shape \[3\], the architecture wants \[16\]"):
        pulled(tmp_path, lambda tensors: tensors.update({name: torch.zeros(3)}))


def test_a_tower_in_codes_is_left_out_and_the_user_is_told(tmp_path: Path) -> None:
    name = "model.visual.blocks.0.mlp.linear_fc1.weight"

    def coded(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    stored = pulled(tmp_path, coded)
    assert stored.manifest.vision is None
    assert any("the vision tower is left out" in line and name in line for line in stored.manifest.formats.fallbacks)


def test_a_manifest_that_names_another_file_is_refused(tmp_path: Path) -> None:
    stored = pulled(tmp_path)
    text = json.loads((stored.path / "manifest.json").read_text())
    text["vision"]["file"] = "other.safetensors"
    with pytest.raises(StoreError, match=r"vision is not vision\.safetensors"):
        manifests.parse(json.dumps(text).encode(), "manifest.json")


def test_a_tower_that_is_not_computed_leaves_the_text(tmp_path: Path) -> None:
    from moeinf.models.family import family_of

    config = seeing_config("gemma4")
    config["vision_config"] = config["vision_config"] | {"use_clipped_linears": True}
    family = family_of(config)
    assert family.vision is None and "use_clipped_linears" in family.no_vision
