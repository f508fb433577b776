"""Layers that predict further tokens are kept as they were published, where no run looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from moeinf.config.pull_options import PullOptions
from moeinf.errors import StoreError
from moeinf.pull.pull import pull
from moeinf.store import manifest as manifests
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.store.verify import check_files, verify
from moeinf.terminal.stored.show import show_json, show_lines
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.configs.deepseek_v3 import DEEPSEEK_V3
from tests.support.configs.qwen3_5_moe import QWEN3_5

AHEAD = {
    "enorm.weight": torch.arange(64).bfloat16(),
    "eh_proj.weight": torch.randn(64, 128).bfloat16(),
    "mlp.experts.0.gate_proj.weight": torch.randn(24, 64).to(torch.float8_e4m3fn),
    "mlp.experts.0.gate_proj.weight_scale_inv": torch.rand(1, 1),
}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "deepseek_v3": (DEEPSEEK_V3, f"model.layers.{DEEPSEEK_V3['num_hidden_layers']}."),
    "qwen3_5_moe": (QWEN3_5, "mtp."),
}


def stored_with(folder: Path, family: str, more: dict[str, Tensor]) -> StoredModel:
    config, prefix = CASES[family]
    tensors = random_tensors(config) | {prefix + name: tensor for name, tensor in more.items()}
    source = write_checkpoint(folder / "source", tensors, config)
    return pull(str(source), PullOptions(quant="q8_0"), home=folder / "home")


@pytest.mark.parametrize("family", CASES)
def test_they_are_kept_bit_for_bit_beside_what_is_quantised(family: str, tmp_path: Path) -> None:
    stored, prefix = stored_with(tmp_path, family, AHEAD), CASES[family][1]
    entry = stored.manifest.ahead
    assert entry is not None
    kept = safetensors.torch.load_file(stored.path / entry.file)
    assert kept.keys() == {prefix + name for name in AHEAD}
    for name, tensor in AHEAD.items():
        assert torch.equal(kept[prefix + name].view(torch.uint8), tensor.view(torch.uint8))
    assert not any(
        spec.name.startswith(prefix) for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense)
    )
    assert json.loads((stored.path / "manifest.json").read_text())["version"] == 5
    assert json.loads(show_json(stored))["moe"]["mtp_bytes"] == entry.num_bytes
    assert any("MTP layers" in line and "--draft mtp" in line for line in show_lines(stored))


def test_copies_of_embedding_and_head_are_not_kept_and_what_differs_is(tmp_path: Path) -> None:
    model = random_tensors(DEEPSEEK_V3)
    copies = {
        "embed_tokens.weight": model["model.embed_tokens.weight"],
        "shared_head.head.weight": model["lm_head.weight"].float(),
    }
    assert stored_with(tmp_path / "same", "deepseek_v3", copies).manifest.ahead is None
    copies["embed_tokens.weight"] = copies["embed_tokens.weight"].clone()
    copies["embed_tokens.weight"][-1, -1] += 1
    stored = stored_with(tmp_path / "other", "deepseek_v3", copies)
    kept = safetensors.torch.load_file(stored.path / "ahead.safetensors")
    name = CASES["deepseek_v3"][1] + "embed_tokens.weight"
    assert kept.keys() == {name} and torch.equal(kept[name], copies["embed_tokens.weight"])


def test_verify_looks_at_them_and_a_run_does_not(tmp_path: Path) -> None:
    stored = stored_with(tmp_path, "deepseek_v3", AHEAD)
    assert verify(stored) == []
    path = stored.path / "ahead.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    check_files(stored)  # before a run
    assert verify(stored) == ["ahead.safetensors does not match its checksum"]
    path.write_bytes(data[:-1])
    with pytest.raises(StoreError, match=r"ahead\.safetensors is \d+ bytes long"):
        check_files(stored)


def test_a_model_without_them_is_stored_as_it_always_was(tmp_path: Path) -> None:
    stored = stored_with(tmp_path, "deepseek_v3", {})
    text = json.loads((stored.path / "manifest.json").read_text())
    assert (text["version"], "ahead" in text, (stored.path / "ahead.safetensors").exists()) == (2, False, False)
    assert "MTP" not in "\n".join(show_lines(stored))


def test_a_manifest_that_names_another_file_is_refused(tmp_path: Path) -> None:
    stored = stored_with(tmp_path, "deepseek_v3", AHEAD)
    text = json.loads((stored.path / "manifest.json").read_text())
    text["ahead"]["file"] = "other.safetensors"
    with pytest.raises(StoreError, match=r"ahead is not ahead\.safetensors"):
        manifests.parse(json.dumps(text).encode(), "manifest.json")
