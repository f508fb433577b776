"""NVFP4 with scales beside its blocks: powers of two compute, to the bit, what blocks with larger scales do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import CheckpointError, MoeinfError, StoreError, UnsupportedModelError
from moeinf.pull.pull import ensure, pull
from moeinf.store.library import StoredModel
from moeinf.store.manifest import model_id, parse
from moeinf.store.placed.scales import NO_SCALES
from moeinf.store.verify import verify
from moeinf.types import Float32Array
from tests.support.adapters import write_gguf_adapter
from tests.support.blocks import even_blocks
from tests.support.checkpoints import random_tensors
from tests.support.gguf_files import Floats, converted, write_gguf
from tests.support.gpu.emulated_gpu import opened
from tests.support.mixed_gguf import without_vocabulary
from tests.support.tiny_models import all_configs

IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
EXPERTS = 8


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


def logits(stored: StoredModel, **options: Any) -> Float32Array:
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", **options)) as model:
        network: Any = model.runner.network
        prefill = network.forward(IDS[:-1], model.runner.cache, last_only=False)
        found: Float32Array = np.concatenate([prefill, model.runner.forward(IDS[-1:], lambda: None)])
    return found


class Weights:
    """Qwen3-MoE with every matrix of a linear layer in random NVFP4 blocks, and powers of two as scales of some."""

    def __init__(self, *, fused: bool = False) -> None:
        # Rows are whole blocks of 64 numbers.
        self.config = all_configs()["qwen3_moe"] | {"moe_intermediate_size": 64, "head_dim": 32}
        self.tensors = {name: tensor.float() / 8 for name, tensor in random_tensors(self.config).items()}
        rng = np.random.default_rng(8)
        self.blocks: dict[str, npt.NDArray[np.uint8]] = {}
        self.scales: dict[str, Floats] = {}
        self.fused = fused
        for name, values in converted("qwen3_moe", self.config, self.tensors, fused=fused).items():
            if values.ndim < 2 or any(part in name for part in ("norm", "token_embd", "ffn_gate_inp")):
                continue
            count = values.size // 64
            self.blocks[name] = even_blocks("nvfp4", count, rng).reshape(*values.shape[:-1], -1)
            powers = rng.integers(0, 3, EXPERTS if values.ndim == 3 else 1)
            if "attn_v" not in name:  # has none
                self.scales[name.replace(".weight", ".scale")] = np.exp2(powers).astype(np.float32)

    def into_blocks(self) -> Mapping[str, npt.NDArray[np.uint8]]:
        """The blocks, whose own scales are multiplied by what lies beside them."""
        found = {}
        for name, blocks in self.blocks.items():
            scales = self.scales.get(name.replace(".weight", ".scale"), np.ones(1, np.float32))
            changed = blocks.reshape(len(scales), -1, 36).copy()
            changed[:, :, :4] += (8 * np.log2(scales)).astype(np.uint8)[:, None, None]
            found[name] = changed.reshape(blocks.shape)
        return found

    def write(self, path: Path, *, scaled: bool, **more: Any) -> Path:
        blocks, scales = (self.blocks, self.scales) if scaled else (self.into_blocks(), {})
        how: dict[str, Any] = {"nvfp4": blocks, "scales": scales, "fused": self.fused, "kinds": lambda name: "F32"}
        return write_gguf(path, self.config, self.tensors, **how | more)[0]


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "gate and up in one tensor"])
def test_a_scale_beside_blocks_is_one_within_them(tmp_path: Path, fused: bool) -> None:
    home, weights = tmp_path / "home", Weights(fused=fused)
    wanted = logits(ensure(str(weights.write(tmp_path / "within.gguf", scaled=False)), home=home))
    file = weights.write(tmp_path / "beside.gguf", scaled=True)
    stored = ensure(str(file), home=home)
    manifest = stored.manifest
    assert json.loads(manifest.dumps())["version"] == 4 and parse(manifest.dumps(), "m") == manifest
    assert "lm_head.weight" in manifest.scales.dense and set(manifest.scales.experts[0]) == {"gate", "up", "down"}
    own = pull(str(file), PullOptions(repack=True), home=home)
    assert own.manifest.in_place is None and own.manifest.scales == manifest.scales
    for each in (stored, own):
        for options in ({}, {"expert_cache": "40%"}, {"expert_cache": "40%", "prefill_chunk": 1}):
            assert np.array_equal(logits(each, **options), wanted)
        assert verify(each) == []
    plain = weights.write(tmp_path / "plain.gguf", scaled=True, scales={})
    assert not np.allclose(logits(ensure(str(plain), home=home)), wanted, rtol=0.1)


@pytest.mark.parametrize(
    ("name", "numbers", "error", "said"),
    [
        ("token_embd.scale", np.ones(1, np.float32), UnsupportedModelError, "which is computed without"),
        ("blk.0.ffn_gate_inp.scale", np.ones(1, np.float32), UnsupportedModelError, "which is computed without"),
        ("blk.0.attn_q.scale", np.ones(2, np.float32), CheckpointError, "is damaged"),
        ("blk.0.ffn_down_exps.scale", np.ones(1, np.float32), CheckpointError, "is damaged"),
        ("blk.0.attn_q.scale", np.array([np.nan], np.float32), CheckpointError, "NaN or infinite scale"),
    ],
)
def test_other_scales_are_refused_in_a_line(
    name: str, numbers: Floats, error: type[MoeinfError], said: str, tmp_path: Path
) -> None:
    weights = Weights()
    file = weights.write(tmp_path / "m.gguf", scaled=True, scales={**weights.scales, name: numbers})
    with pytest.raises(error, match=said) as raised:
        ensure(str(file), home=tmp_path / "home")
    assert name in str(raised.value) and "\n" not in str(raised.value)


def test_a_manifest_is_held_to_what_scales_are(tmp_path: Path) -> None:
    stored = ensure(str(Weights().write(tmp_path / "m.gguf", scaled=True)), home=tmp_path / "home")
    changes: list[tuple[Callable[[Any], object], str]] = [
        (lambda scales: scales["experts"].pop(), "experts are 2, not 3"),
        (lambda scales: scales["experts"][1]["up"].pop(), "of layer 1 are not 8 numbers each"),
        (lambda scales: scales["experts"][1].update(other=[1.0] * 8), "scale what is no matrix"),
        (lambda scales: scales["experts"][1].update(up=["1"] * 8), "up is no number"),
        (lambda scales: scales["dense"].update(x=1), "x is not of type float"),
        (lambda scales: scales.update(more=1), "more is not known"),
    ]
    for change, said in changes:
        value = json.loads(stored.manifest.dumps())
        change(value["scales"])
        with pytest.raises(StoreError, match=said):
            parse(json.dumps(value).encode(), "m")
    own = pull(str(tmp_path / "m.gguf"), PullOptions(repack=True), home=tmp_path / "home").manifest
    value = json.loads(replace(own, layers=(), scales=NO_SCALES).dumps()) | {"version": 4, "scales": {}}
    with pytest.raises(StoreError, match="scales are of weights whose layers share one layout"):
        parse(json.dumps(value).encode(), "m")
    value = json.loads(stored.manifest.dumps())
    value["scales"]["dense"]["model.norm.weight"] = 2.0
    data = json.dumps(value).encode()
    stranger = stored.path.with_name(model_id(data))
    shutil.copytree(stored.path, stranger)
    (stranger / "manifest.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"scales model\.norm\.weight, which is no matrix"):
        logits(StoredModel("m:latest", stranger.name, stranger))


def test_on_a_gpu_scales_are_multiplied_into_the_weights(tmp_path: Path) -> None:
    """Those of powers of two are exact in blocks of q8_0 too; NVFP4 has become these."""
    home, weights = tmp_path / "home", Weights()

    def on_a_gpu(file: Path, *, repack: bool = False, **options: Any) -> Float32Array:
        stored = pull(str(file), PullOptions(repack=True), home=home) if repack else ensure(str(file), home=home)
        with opened(stored, context=32, **options) as model:
            found = [model.runner.forward(step, lambda: None)[-1].copy() for step in (IDS[:-2], IDS[-2:-1], IDS[-1:])]
        return np.stack(found)

    wanted = on_a_gpu(weights.write(tmp_path / "within.gguf", scaled=False))
    beside = weights.write(tmp_path / "beside.gguf", scaled=True)
    assert np.array_equal(on_a_gpu(beside), wanted)
    assert np.array_equal(on_a_gpu(beside, host=6, expert_cache="30%"), wanted)
    assert np.array_equal(on_a_gpu(beside, repack=True), wanted)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q4_0", "Q8_0"])
def test_on_a_gpu_other_types_with_scales_are_widened_and_a_line_says_so(kind: str, tmp_path: Path) -> None:
    weights, notices = Weights(), list[str]()
    file = weights.write(tmp_path / "m.gguf", scaled=True, nvfp4=None, kinds=lambda name: kind)
    stored = ensure(str(file), home=tmp_path / "home")
    with opened(stored, context=32, reporting=Reporting(notices.append)) as model:
        found = np.concatenate([model.runner.forward(step, lambda: None)[-1:] for step in (IDS[:-1], IDS[-1:])])
    wanted = logits(stored)[-2:]
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)
    assert any(f"{kind.lower()} with scales" in notice for notice in notices) == (kind in ("BF16", "Q4_0"))


@pytest.mark.parametrize("fused", [False, True])
def test_matrices_that_an_adapter_changes_have_their_scales_in_them(fused: bool, tmp_path: Path) -> None:
    """One that adds nothing leaves the numbers, which bf16 holds."""
    weights = Weights(fused=fused)
    file, zeros = weights.write(tmp_path / "model.gguf", scaled=True), np.zeros
    width = weights.config["hidden_size"]
    pairs = {
        "blk.0.attn_q.weight": (zeros((2, width)), zeros((weights.config["num_attention_heads"] * 32, 2))),
        "blk.1.ffn_down_exps.weight": (zeros((EXPERTS, 2, 64)), zeros((EXPERTS, width, 2))),
    }
    lora = PullOptions(lora=str(write_gguf_adapter(tmp_path / "lora.gguf", "qwen3moe", pairs)))
    stored = ensure(str(file), lora, home=tmp_path / "home")
    scales = stored.manifest.scales
    assert "down" not in scales.experts[1] and "down" in scales.experts[0]
    assert "model.layers.0.self_attn.q_proj.weight" not in scales.dense and scales.dense
    wanted = logits(ensure(str(file), home=tmp_path / "home"))
    np.testing.assert_allclose(logits(stored), wanted, rtol=0.02, atol=0.02 * np.abs(wanted).max())
