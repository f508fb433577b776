"""A GGUF file on the GPU path, on a device in host memory: what the CPU computes, and exactly what q8_0 would give.

The kernels are the twins in plain torch; where a test says so, they are Triton's in its interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from moeinf._native import quantise
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.memory.device_plan import DevicePlan, plan_device_memory
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import ExpertReadError, NotFiniteError
from moeinf.gpu.cuda import Gpu
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.pull.pull import ensure, pull
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.store.library import StoredModel
from moeinf.text.quantities import size_text
from moeinf.types import DEVICE_FORMATS, Float32Array
from tests.support.blocks import QUANTISED
from tests.support.checkpoints import CONFIG, random_tensors
from tests.support.converter.meant import meant
from tests.support.converter.record import NAMES, checkpoint
from tests.support.gguf_files import Blocks, as_it_is, write_gguf
from tests.support.gpu.emulated_gpu import emulated, interpreted, opened
from tests.support.mixed_gguf import MIXED, by_turns, small, wide_model, without_vocabulary
from tests.support.tiny_models import all_configs

Form = Callable[[Blocks, GGMLQuantizationType], tuple[Blocks, GGMLQuantizationType]]
IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
CONVERTED = [format.upper() for format in QUANTISED if format not in DEVICE_FORMATS]
WIDENED = ("laguna", "step3p7")  # whose gates of heads, a few rows, are computed in f32 from blocks of any type
FAMILIES = {  # the first config of each
    all_configs()[name]["model_type"]: name for name in reversed(NAMES) if name not in WIDENED
}


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


def logits_of(model: Model) -> Float32Array:
    """Of a prompt and of three tokens behind it: as written, recorded and repeated."""
    steps = [IDS[:-3], *([token] for token in IDS[-3:])]
    found: Float32Array = np.stack([model.runner.forward(step, lambda: None)[-1].copy() for step in steps])
    model.tier.check_integrity()
    return found


def logits(stored: StoredModel, gpu: OpenGpu | None = None, host: int | None = None, **options: Any) -> Float32Array:
    with opened(stored, gpu, host, context=32, **options) as model:
        return logits_of(model)


def on_cpu(stored: StoredModel) -> Float32Array:
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", prefill_chunk=16)) as model:
        return logits_of(model)


def as_q8_0(blocks: Blocks, kind: GGMLQuantizationType) -> tuple[Blocks, GGMLQuantizationType]:
    """What a GPU has no kernels for, in the blocks that it is said to be computed in."""
    if kind.name not in CONVERTED:
        return blocks, kind
    values = quants.dequantize(blocks, kind)
    made = np.empty((*values.shape[:-1], values.shape[-1] // 32 * 34), np.uint8)
    quantise("q8_0", values.view(np.uint8).reshape(-1), "f32", values.size // 32, 32, made.reshape(-1))
    return made, GGMLQuantizationType.Q8_0


def as_f32(blocks: Blocks, kind: GGMLQuantizationType) -> tuple[Blocks, GGMLQuantizationType]:
    return quants.dequantize(blocks, kind), GGMLQuantizationType.F32


def files_of(family: str, folder: Path, forms: Mapping[str, Form]) -> dict[str, StoredModel]:
    """A model of ten types by turns, as each of these forms."""
    config, tensors = checkpoint(FAMILIES[family])
    config, tensors = meant(config), small(tensors)
    types = ("Q5_0", "Q4_0", "Q5_1", "F16", "Q8_0", "Q4_1", "BF16", "IQ4_NL", "MXFP4", "F32")
    models = {}
    for name, form in forms.items():
        [file] = write_gguf(folder / f"{name}.gguf", config, tensors, kinds=by_turns(types), stored=form)
        models[name] = ensure(str(file), home=folder / "home")
    return models


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_blocks_of_q8_0_give(family: str, tmp_path: Path) -> None:
    models = files_of(family, tmp_path, {"as it is": as_it_is, "in q8_0": as_q8_0})
    assert np.array_equal(logits(models["as it is"], host=8, expert_cache="40%"), logits(models["in q8_0"])), (
        "though experts come and go"
    )


@pytest.mark.parametrize("family", list(FAMILIES)[::4])
def test_they_are_as_exact_as_the_cpu(family: str, tmp_path: Path) -> None:
    models = files_of(family, tmp_path, {"as it is": as_it_is, "in f32": as_f32})
    exact = on_cpu(models["in f32"])
    error, of_cpu = (np.linalg.norm(found(models["as it is"]) - exact) for found in (logits, on_cpu))
    assert error < 2 * of_cpu + 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("types", [CONVERTED[:9], CONVERTED[9:]], ids=lambda types: types[0])
def test_every_type_is_computed_as_its_weights_in_q8_0_are(types: Sequence[str], tmp_path: Path) -> None:
    """Nine types, one for each part of each of three layers."""
    stored = wide_model(tmp_path, types)
    assert {t.dtype.upper() for layout in stored.manifest.layers for t in layout.tensors} == set(types)
    found = logits(stored)
    assert np.isfinite(found).all() and np.array_equal(
        found, logits(wide_model(tmp_path, types, "in-q8_0", stored=as_q8_0))
    )


def test_the_logits_are_the_same_for_every_cache_policy_and_reader(tmp_path: Path) -> None:
    stored = wide_model(tmp_path, MIXED)
    assert stored.manifest.in_place is not None
    assert any(place.step_bytes % 4096 for places in stored.manifest.in_place.experts for place in places)
    expected = logits(stored)
    runs: list[dict[str, Any]] = [
        {"host": 4, "expert_cache": "9%"},
        {"host": 4, "expert_cache": "9%", "prefetch": False},
        {"host": 10, "expert_cache": "50%", "threads": 3},
        {"host": 10, "expert_cache": "50%", "reader": "pure"},
        {"expert_cache": "9%"},  # the device fetches by itself what host memory holds
        {"expert_cache": "50%", "prefill_chunk": 1},
        {"host": 10, "expert_cache": "25%", "gpu": emulated(pinned_bytes=0)},
        *({"host": 10, "expert_cache": "25%", "policy": policy} for policy in POLICIES),
    ]
    for options in runs:
        if "prefill_chunk" in options:  # few rows are multiplied by weights that were not rounded
            np.testing.assert_allclose(logits(stored, **options), expected, atol=0.02 * np.abs(expected).max())
        else:
            assert np.array_equal(logits(stored, **options), expected), options


@pytest.mark.parametrize(
    ("types", "said"), [(MIXED, "no kernels for iq4_xs, q3_k, q5_k, q6_k and"), (("Q4_K", "Q8_0", "BF16"), "")]
)
def test_what_is_converted_is_told_in_a_line_and_planned(types: Sequence[str], said: str, tmp_path: Path) -> None:
    notices: list[str] = []
    stored = wide_model(tmp_path, types)
    with opened(stored, reporting=Reporting(notices.append)) as model:
        plan, moe = model.runner.plan, stored.manifest.moe
    told = [notice for notice in notices if "kernels" in notice]
    assert len(told) == bool(said) and all(said in notice for notice in told)
    assert plan.num_slots == moe.total_experts
    if said:
        assert f"all experts take {size_text(plan.cache_bytes)} there instead of" in told[0]
        assert f"dense weights {size_text(plan.dense_bytes)} instead of" in told[0]
    else:
        assert plan.slot_bytes == stored.manifest.layout.stride_bytes, "parts have moved within what was read"


def test_reads_are_compared_with_the_checksums_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "wide.gguf"
    expected = logits(wide_model(tmp_path, MIXED))
    stored = pull(str(file), home=tmp_path / "home")
    assert np.array_equal(logits(stored, host=4, expert_cache="20%", verify_reads=True), expected)
    assert stored.manifest.in_place is not None
    down = stored.manifest.in_place.experts[0][2]
    with file.open("r+b") as damaged:
        for expert in range(stored.manifest.moe.num_experts):
            damaged.seek(down.offset_bytes + expert * down.step_bytes + 100)
            damaged.write(b"\x55\xaa\x55\xaa")
    with pytest.raises(ExpertReadError, match=r"of layer 0 is damaged in .*wide\.gguf.*fetch the file again"):
        logits(stored, host=4, expert_cache="20%")


def test_a_scale_that_is_no_number_does_not_become_one(tmp_path: Path) -> None:
    """As on the CPU, it is found by the next router."""
    stored = wide_model(tmp_path, ["Q6_K"])
    assert stored.manifest.in_place is not None
    up = stored.manifest.in_place.experts[0][1]
    with (tmp_path / "wide.gguf").open("r+b") as damaged:
        for expert in range(stored.manifest.moe.num_experts):
            damaged.seek(up.offset_bytes + expert * up.step_bytes + 208)
            damaged.write(b"\x00\x7e")
    for compute in (logits, on_cpu):
        with pytest.raises(NotFiniteError, match="router of expert layer 1 gives no numbers"):
            compute(stored)


def test_a_repacked_file_gives_the_same(tmp_path: Path) -> None:
    stored = wide_model(tmp_path, MIXED)
    own = pull(str(tmp_path / "wide.gguf"), PullOptions(repack=True), home=tmp_path / "home")
    assert own.manifest.in_place is None and own.manifest.layers
    assert np.array_equal(logits(own, host=6, expert_cache="30%"), logits(stored))


def test_with_a_share_computed_by_the_cpu_logits_are_the_same_but_for_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeinf.runtime.gpu.cpu_share.CpuShare.share", lambda self, missing: (missing + 1) // 2)
    stored = wide_model(tmp_path, MIXED)
    alone = logits(stored, expert_cache="40%")
    shared = logits(stored, expert_cache="40%", cpu_experts=True)
    assert np.linalg.norm(shared - alone) < 0.03 * np.linalg.norm(alone) and not np.array_equal(shared, alone)


def test_logits_of_tritons_kernels_are_those_of_their_twins(tmp_path: Path) -> None:
    """In the interpreter, with parts and layers of several types, and slots of two sizes, of which the device chooses.

    It rounds bfloat16 otherwise, so the rest is f32.
    """
    pytest.importorskip("triton", reason="triton is not installed")
    experts = by_turns(["Q5_0", "Q4_0", "Q5_1", "F32", "Q5_0", "F32"])
    config = CONFIG | {"moe_intermediate_size": 64}
    [file] = write_gguf(
        tmp_path / "m.gguf",
        config,
        small(random_tensors(config)),
        kinds=lambda name: experts(name) if "exps" in name else "F32",
    )
    stored = ensure(str(file), home=tmp_path / "home")
    with opened(stored, context=32, expert_cache="60%") as model:
        assert isinstance(model.plan, DevicePlan) and len(model.plan.sizes.class_bytes) == 2
        assert model.plan.host_slots == stored.manifest.moe.total_experts
    found, wanted = (logits(stored, gpu, expert_cache="60%") for gpu in (interpreted(), emulated()))
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)


CARD = Gpu(0, "Emulated", (8, 6), 13000, 24 << 30, 23 << 30)


def test_a_gpu_is_taken_unless_memory_holds_the_experts_only_as_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = wide_model(tmp_path, ["IQ2_XXS"])
    monkeypatch.setattr("moeinf.engine.devices.find_cuda", lambda device, notice: CARD)
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", lambda gpu: emulated())
    with Model(stored, RuntimeConfig.of(device="cuda", threads=1)) as model:
        assert "Emulated" in model.describe()

    def few(*args: Any) -> Any:
        return replace(plan_device_memory(*args), num_slots=4, host_slots=10)

    monkeypatch.setattr("moeinf.engine.preference.plan_device_memory", few)
    notices: list[str] = []
    with Model(stored, RuntimeConfig.of(threads=1), Reporting(notices.append)) as model:
        assert "CPU" in model.describe()
    assert sum("running on the CPU: memory holds all experts as they are stored" in each for each in notices) == 1
