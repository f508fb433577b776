"""Large experts are cached in slices: the same tokens, damage found before it answers, memory given back in parts."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory import footprint
from moeinf.engine.model import Model
from moeinf.engine.worker import WorkerExperts
from moeinf.errors import ExpertReadError
from moeinf.pull.pull import ensure
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.store.library import StoredModel
from moeinf.store.placed.expert_slices import ExpertSlices, slices_of
from moeinf.types import Float32Array
from tests.support.converter.meant import meant
from tests.support.converter.record import checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.mixed_gguf import small, without_vocabulary

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
SLICE_BYTES = 10_000  # of the demo's experts, 48 KiB


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts experts of any size."""
    monkeypatch.setattr("moeinf.store.placed.expert_slices.ROWS_STEP", 8)
    small_slices = functools.partial(slices_of, least_bytes=1, slice_bytes=SLICE_BYTES)
    monkeypatch.setattr(footprint, "slices_of", small_slices)


def tokens(stored: StoredModel, count: int = 24, **options: Any) -> list[int]:
    with Model(stored, RuntimeConfig.of(**{"device": "cpu", "threads": 2} | options)) as model:
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=count, stop=()))
        model.tier.check_integrity()
        stats, shape = answer.stats, stored.manifest.moe
        decoded = len(stats.token_s) + stats.drafts.drafted - stats.drafts.accepted
        for cache, passed in ((stats.prefill_cache, stats.prompt_tokens), (stats.decode_cache, decoded)):
            assert cache.hits + cache.misses == passed * shape.num_layers * shape.top_k
        return answer.token_ids


OPTIONS = [
    *({"expert_cache": share} for share in ("10%", "33%", "71%", "99%", "100%")),
    *({"expert_cache": "20%", "policy": policy} for policy in POLICIES),
    {"expert_cache": "25%", "reader": "pure"},
    {"expert_cache": "25%", "prefetch": False},
    {"expert_cache": "30%", "prefill_chunk": 7},
    {"expert_cache": "25%", "verify_reads": True},
]


@pytest.fixture(scope="module")
def plain(demo: StoredModel) -> list[int]:
    return tokens(demo, expert_cache="100%")


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_slices_give_the_tokens_of_whole_experts(demo: StoredModel, plain: list[int], options: dict[str, Any]) -> None:
    assert tokens(demo, **options) == plain


@pytest.mark.usefixtures("cut")
def test_memory_that_holds_part_of_an_expert_is_used(demo: StoredModel) -> None:
    stride, top_k = demo.manifest.layout.stride_bytes, demo.manifest.moe.top_k
    num_bytes = top_k * stride + stride * 2 // 3
    with Model(demo, RuntimeConfig.of(device="cpu", expert_cache=f"{num_bytes}B")) as model:
        slices = model.plan.slices
        assert slices is not None and slices.of_expert > 3
        assert num_bytes - slices.slot_bytes < model.plan.cache_bytes <= num_bytes
        assert (model.plan.num_slots, model.tier.num_slots) == (top_k, slices.num_slots)
        assert model.tier.states().shape == (demo.manifest.moe.num_layers, demo.manifest.moe.num_experts)
    with Model(demo, RuntimeConfig.of(device="cpu", expert_cache="100%")) as model:
        assert model.plan.slices is None, "there is nothing to gain where all of them fit"


@pytest.mark.usefixtures("cut")
def test_machines_that_compute_together_share_out_whole_experts(demo: StoredModel) -> None:
    with WorkerExperts(demo, RuntimeConfig.of(expert_cache="30%")) as worker:
        assert worker.plan.slices is None and worker.tier.num_slots == worker.plan.num_slots


@pytest.mark.usefixtures("cut")
def test_slots_of_slices_are_given_back_and_taken_again_amid_an_answer(demo: StoredModel, plain: list[int]) -> None:
    with Model(demo, RuntimeConfig.of(device="cpu", threads=2, expert_cache="60%")) as model:
        found = []
        most, least = model.tier.most_slots, demo.manifest.moe.top_k * 2
        prompt = model.encode(PROMPT)
        logits = model.runner.forward(prompt, lambda: None)
        for number in range(len(plain)):
            found.append(int(logits[-1].argmax() if logits.ndim > 1 else logits.argmax()))
            model.tier.resize((least, most, most // 3, most // 2)[number % 4])
            model.tier.check_integrity()
            logits = model.runner.forward(found[-1:], lambda: None)
        assert found == plain and model.tier.stats.given_back_bytes > 0


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("options", [{}, {"reader": "pure"}, {"verify_reads": True}, {"prefetch": False}], ids=str)
def test_a_damaged_expert_does_not_answer(demo: StoredModel, tmp_path: Path, options: dict[str, Any]) -> None:
    shutil.copytree(demo.path, tmp_path / demo.id)
    stored = StoredModel(demo.name, demo.id, tmp_path / demo.id)
    path, stride = stored.path / "experts-00001.bin", stored.manifest.layout.stride_bytes
    data = bytearray(path.read_bytes())
    for expert in range(stored.manifest.moe.num_experts):
        data[expert * stride + expert * 1000] ^= 1
    path.write_bytes(data)
    with Model(stored, RuntimeConfig.of(device="cpu", expert_cache="30%", **options)) as model:
        for _ in range(2):
            with pytest.raises(ExpertReadError, match=r"of layer 1 is damaged in .*do not match their checksum"):
                model.generate(PROMPT, model.params(num_predict=2))


def logits_of(stored: StoredModel, **options: Any) -> Float32Array:
    with Model(stored, RuntimeConfig.of(context=32, threads=2, device="cpu", **options)) as model:
        network: Any = model.runner.network
        prefill = network.forward([5, 17, 3, 41, 41, 2, 60, 9], model.runner.cache, last_only=False)
        found: Float32Array = np.concatenate([prefill, model.runner.forward([33], lambda: None)])
        model.tier.check_integrity()
    return found


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
@pytest.mark.parametrize("kinds", [{}, {"ffn_gate_exps": "Q8_0", "ffn_up_exps": "Q4_0", "ffn_down_exps": "Q5_1"}])
def test_experts_of_a_file_in_place_are_read_slice_by_slice(
    family: str, kinds: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of parts in several types, with biases, that begin anywhere in the file's blocks."""
    without_vocabulary(monkeypatch)
    config, tensors = checkpoint(family)
    config, tensors = meant(config), small(tensors)

    def kind_of(name: str) -> str:
        return next((kind for part, kind in kinds.items() if part in name and "weight" in name), "F32")

    [file] = write_gguf(tmp_path / "model.gguf", config, tensors, kinds=kind_of)
    stored = ensure(str(file), home=tmp_path / "home")
    whole = logits_of(stored)
    cut: list[ExpertSlices | None] = []

    def tiny(manifest: Any) -> ExpertSlices | None:
        monkeypatch.setattr("moeinf.store.placed.expert_slices.ROWS_STEP", 8)
        cut.append(slices_of(manifest, 1, 2000))
        return cut[-1]

    monkeypatch.setattr(footprint, "slices_of", tiny)
    for share in ("50%", "75%"):
        assert np.array_equal(logits_of(stored, expert_cache=share), whole)
    assert cut[0] is not None and cut[0].most > 2


@pytest.mark.usefixtures("cut")
def test_an_expert_of_which_a_slice_is_absent_may_be_given_up(demo: StoredModel, tmp_path: Path) -> None:
    folder = shutil.copytree(demo.path, tmp_path / demo.id, ignore=shutil.ignore_patterns("*.npz", "*.json.lock"))
    config = RuntimeConfig.of(device="cpu", threads=2, expert_cache="25%", approx=0.05)
    with Model(StoredModel(demo.name, demo.id, folder), config) as model:
        approx = model.runner.approx
        assert approx is not None and model.tier.shape.num_experts > demo.manifest.moe.num_experts, "nothing is cut"
        before = approx.instead
        model.generate(PROMPT, model.params(temperature=0.0, num_predict=24, stop=()))
        assert approx.instead > before and 0 < approx.within.measured <= 0.05
        model.tier.check_integrity()
