"""A GGUF file where it lies gives what a store of the same weights gives, whatever the cache, and is left as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.pull.pull import ensure, pull
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.store.library import Library, StoredModel
from moeinf.types import Float32Array
from tests.support.checkpoints import TOKENIZER, write_checkpoint
from tests.support.converter.meant import meant
from tests.support.converter.record import NAMES, checkpoint
from tests.support.gguf_files import write_gguf

IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
# Log and exponential do not undo each other to the bit, and factors of positions are rounded.
RECOMPUTED = ("qwen3_next", "qwen3_5_moe")


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    files = {"tokenizer.json": json.dumps(TOKENIZER).encode(), "tokenizer_config.json": b"{}"}
    monkeypatch.setattr("moeinf.pull.gguf.index.tokenizer_files", lambda gguf: files)


def logits(stored: StoredModel, **options: Any) -> Float32Array:
    """Of a prompt and of a token behind it."""
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", **options)) as model:
        runner = model.runner
        network: Any = runner.network
        prefill = network.forward(IDS[:-1], runner.cache, last_only=False)
        found: Float32Array = np.concatenate([prefill, runner.forward(IDS[-1:], lambda: None)])
        model.tier.check_integrity()
    return found


def small(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.float() / 8 if tensor.ndim > 1 else tensor.float() for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_what_its_checkpoint_does(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    config, tensors = meant(config), small(tensors)
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    of_store = logits(pull(str(folder), home=tmp_path / "home"))
    [file] = write_gguf(tmp_path / "model.gguf", config, tensors, kinds=lambda name: "F32")
    before = file.read_bytes()
    stored = ensure(str(file), home=tmp_path / "home")
    in_place = logits(stored, expert_cache="50%")
    assert np.isfinite(of_store).all()
    if config["model_type"] in RECOMPUTED or "attention_factor" in (stored.path / "config.json").read_text():
        np.testing.assert_allclose(in_place, of_store, rtol=1e-3, atol=1e-3 * np.abs(of_store).max())
    else:
        assert np.array_equal(in_place, of_store)
    assert file.read_bytes() == before
    assert {path.name for path in stored.path.iterdir()} >= {"config.json", "manifest.json", "tokenizer.json"}
    assert stored.manifest.in_place is not None
    assert sum(path.stat().st_size for path in stored.path.iterdir()) < len(before)


def mixed(tmp_path: Path, **how: Any) -> Path:
    """Layers and parts in several formats, in rows that are no whole number of 4 KiB blocks."""
    config, tensors = checkpoint("qwen3_moe")
    kinds = {"ffn_gate_exps": "Q8_0", "ffn_up_exps": "Q4_0", "ffn_down_exps": "Q5_1", "token_embd": "Q8_0"}

    def kind(name: str) -> str:
        if name.startswith("blk.0.ffn_down_exps"):
            return "BF16"
        return next((each for part, each in kinds.items() if part in name), "F16")

    return write_gguf(tmp_path / "mixed.gguf", config, small(tensors), kinds=kind, **how)[0]


@pytest.mark.parametrize("how", [{}, {"tensors_a_part": 5}], ids=["one file", "a split"])
def test_the_tokens_are_the_same_for_every_cache_policy_and_reader(tmp_path: Path, how: dict[str, Any]) -> None:
    stored = ensure(str(mixed(tmp_path, **how)), home=tmp_path / "home")
    manifest = stored.manifest
    assert manifest.in_place is not None and (len(manifest.in_place.files) > 1) == bool(how)
    assert any(place.step_bytes % 4096 for places in manifest.in_place.experts for place in places)
    expected = logits(stored)
    smallest = manifest.moe.top_k * manifest.layout.stride_bytes
    runs: list[dict[str, Any]] = [
        {"expert_cache": smallest},
        {"expert_cache": smallest, "prefetch": False},
        {"expert_cache": "60%", "reader": "pure"},
        {"expert_cache": "60%", "direct_io": False, "prefill_chunk": 1},
        *({"expert_cache": "60%", "policy": policy} for policy in POLICIES),
    ]
    for options in runs:
        assert np.array_equal(logits(stored, **options), expected), options


@pytest.mark.parametrize("fused", [False, True])
def test_gate_and_up_may_lie_in_one_tensor(tmp_path: Path, fused: bool) -> None:
    config, tensors = checkpoint("qwen3_moe")
    [file] = write_gguf(tmp_path / "m.gguf", config, small(tensors), kinds=lambda name: "F32", fused=fused)
    folder = write_checkpoint(tmp_path / "checkpoint", small(tensors), config, num_shards=0)
    expected = logits(pull(str(folder), home=tmp_path / "home"))
    stored = pull(str(file), home=tmp_path / "home")
    assert np.array_equal(logits(stored, expert_cache="50%", verify_reads=True), expected)


def test_a_file_is_indexed_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    first = ensure(str(file), home=home)
    assert first.name == "mixed:latest" and first.manifest.source.location == str(file)
    assert ensure(str(file), home=home).id == first.id
    assert ensure("mixed", home=home).id == first.id
    config, tensors = checkpoint("qwen3_moe")
    write_gguf(file, config, small(tensors), kinds=lambda name: "BF16")
    second = ensure(str(file), home=home)
    assert (second.name, second.id != first.id) == ("mixed:latest", True)
    assert [model.id for model in Library(home).list()] == [second.id]
    assert not list(home.glob("partial/*"))


def change(at: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 16]))

    return flip
