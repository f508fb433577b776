"""Slots of several sizes on an emulated device, on the host behind it, and on ranks: the logits of equal ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.gpu.cuda import Gpu
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.runtime.cache.slot_sizes import SlotSizes
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array
from tests.support.gpu.emulated_gpu import emulated, in_fours, opened
from tests.support.mixed_gguf import wide_model, without_vocabulary
from tests.support.ranks.workers import Workers

IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
TYPES = [*["Q4_K"] * 3, *["Q2_K"] * 3, *["BF16"] * 3]  # by layer; the second is converted, in a slot of twice its size


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    with pytest.MonkeyPatch.context() as patch:
        without_vocabulary(patch)
        return wide_model(tmp_path_factory.mktemp("sizes"), TYPES, num_layers=6)


def logits_of(model: Model) -> Float32Array:
    """Of a prompt, and of tokens behind it: as written, recorded and repeated."""
    steps = [IDS[:-5], *([token] for token in IDS[-5:])]
    found: Float32Array = np.stack([model.runner.forward(step, lambda: None)[-1].copy() for step in steps])
    model.tier.check_integrity()
    return found


def logits(
    stored: StoredModel, num_sizes: tuple[int, int], gpu: OpenGpu | None = None, host: int | None = None, **options: Any
) -> Float32Array:
    """num_sizes: of the device's slots, and of the host's."""
    with opened(stored, gpu, host, context=32, **options) as model:
        plan: Any = model.plan
        assert (len(plan.sizes.class_bytes), len(plan.host_sizes.class_bytes)) == num_sizes
        assert plan.sizes.wasted() <= 0.1 or num_sizes[0] < 3
        return logits_of(model)


@pytest.fixture(scope="module")
def wanted(stored: StoredModel) -> Float32Array:
    """With equal slots, all experts on the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotSizes, "worth_in", lambda sizes, room: sizes.equal())
        return logits(stored, (1, 1))


@pytest.mark.parametrize(
    ("num_sizes", "options"),
    [
        ((3, 3), {}),  # all experts on the device
        ((3, 3), {"expert_cache": "50%"}),  # it fetches by itself what host memory holds
        ((3, 3), {"expert_cache": "50%", "policy": "lru"}),
        ((3, 3), {"expert_cache": "50%", "host": 18}),
        ((3, 3), {"expert_cache": "40%", "host": 18, "prefetch": False, "reader": "pure"}),
        ((3, 1), {"expert_cache": "50%", "host": 3}),
        ((1, 3), {"expert_cache": "8%", "host": 18}),
        ((1, 3), {"expert_cache": "8%"}),
        pytest.param((3, 3), {"expert_cache": "50%", "gpu": emulated(pinned_bytes=0)}, id="none is pinned"),
        ((3, 3), {"expert_cache": "50%", "host": 18, "pinned": 12}),
    ],
    ids=str,
)
def test_logits_are_those_of_equal_slots(
    stored: StoredModel, wanted: Float32Array, num_sizes: tuple[int, int], options: dict[str, Any]
) -> None:
    assert np.array_equal(logits(stored, num_sizes, **options), wanted)


@pytest.mark.parametrize("host", [18, None])
def test_when_device_memory_runs_out_slots_of_all_sizes_go(
    stored: StoredModel, wanted: Float32Array, host: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(stored, in_fours(stored), host, context=32, expert_cache="60%") as model:
        run: Any = model.runner
        calls, forward = [0], run.network.step

        def scarce(*args: Any, **how: Any) -> Any:
            calls[0] += 1
            if calls[0] in (2, 5):
                raise torch.OutOfMemoryError("no more")
            return forward(*args, **how)

        monkeypatch.setattr(run.network, "step", scarce)
        before = model.tier.num_slots
        assert np.array_equal(logits_of(model), wanted)
        assert model.plan.sizes.least_slots <= model.tier.num_slots < before - 4


@pytest.mark.parametrize("options", [{}, {"host": 18, "expert_cache": "30%"}], ids=str)
def test_cards_share_out_experts_of_all_sizes(
    stored: StoredModel, wanted: Float32Array, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "moeinf.engine.devices.find_cuda", lambda name, notice: Gpu(int(name[5:]), name, (9, 0), 0, 0, 0)
    )
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", lambda gpu: in_fours(stored))
    with opened(stored, replace(in_fours(stored)), device="cuda:0,cuda:1", context=32, **options) as model:
        plan: Any = model.plan
        assert len(plan.sizes.class_bytes) == 3 and plan.num_slots < stored.manifest.moe.total_experts
        assert options or plan.num_slots == len(plan.sizes.order), "all of its experts are there"
        assert np.array_equal(logits_of(model), wanted)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.mark.parametrize("cache", ["100%", "35%"])
def test_ranks_have_slots_of_all_sizes(stored: StoredModel, workers: Workers, cache: str) -> None:
    def on_cpu(**options: Any) -> Float32Array:
        config = RuntimeConfig.of(context=32, threads=1, device="cpu", **options)
        with Model(stored, config) as model:
            assert isinstance(model.runner, CpuRunner) and len(model.plan.sizes.class_bytes) == 3
            if model.runner.star is not None:
                told = model.describe()
                assert all(each.num_owned for each in model.runner.star.peers), told
            return logits_of(model)

    worker = workers.start(stored, expert_cache=cache)
    assert np.array_equal(on_cpu(expert_cache="50%", **workers.options(worker)), on_cpu(expert_cache="100%"))
