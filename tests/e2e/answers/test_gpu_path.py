"""The GPU path, all of it, on a device in host memory: the same tokens for every number of slots, wherever experts lie.

Copies come as late as they may and captured graphs are replayed, so a slot that is reused too early, or compute that
does not wait for its copy, changes the text. The kernels are the twins in plain torch; Triton's own have their tests
beside them.
"""

from __future__ import annotations

import gc
import re
import shutil
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from moeinf.config.pull_options import PullOptions
from moeinf.engine.gpu import GpuRunner
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.engine.weights.dense_file import DenseFile
from moeinf.errors import DeviceError, ExpertReadError, NotFiniteError, OutOfMemoryError, StoreError
from moeinf.gpu.arena import DeviceArena
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.gpu.ops import Ops
from moeinf.pull.pull import pull
from moeinf.runtime.gpu.device_experts import DeviceExperts
from moeinf.runtime.io.file_pieces import FilePieces
from moeinf.runtime.policy.predictors import PREDICTORS
from moeinf.store.dense import dense_tensors
from moeinf.store.library import StoredModel
from moeinf.terminal.answer_stats import stats_lines
from moeinf.types import IntArray
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.fake_device import LateCopier
from tests.support.gpu.emulated_gpu import emulated, in_fours, interpreted, opened
from tests.support.gpu.families import FAMILIES, all_logits, in_family, near

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"
NUM_TOKENS = 12


def answer(model: Model) -> list[int]:
    result = model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
    shape = model.manifest.moe
    for cache, count in (
        (result.stats.prefill_cache, result.stats.prompt_tokens),
        (result.stats.decode_cache, len(result.stats.token_s)),
    ):
        assert cache.hits + cache.misses == count * shape.num_layers * shape.top_k
    return result.token_ids


def answer_tokens(model: Model) -> list[int]:
    """Where a step is repeated, so that counts say less."""
    return model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=())).token_ids


def tokens(stored: StoredModel, gpu: OpenGpu | None = None, host: int | None = None, **options: Any) -> list[int]:
    with opened(stored, gpu, host, **options) as model:
        return answer(model)


@pytest.fixture(scope="module")
def wanted(demo: StoredModel) -> list[int]:
    """Of the run with every expert on the device."""
    return tokens(demo)


@pytest.fixture(scope="module")
def in_float32(demo: StoredModel, tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    folder = tmp_path_factory.mktemp("f32")
    weights = {name: tensor.float() * 0.2 for name, tensor in random_tensors().items()}
    source = write_checkpoint(folder / "source", weights, CONFIG | {"torch_dtype": "float32"})
    shutil.copy(demo.path / "tokenizer.json", source)
    return pull(str(source), home=folder / "home")


@pytest.mark.parametrize("slots", ["8%", "30%", "75%", "100%"])
@pytest.mark.parametrize("host", [6, 40, None], ids=lambda host: f"host-{host}")
def test_tokens_are_the_same_for_every_number_of_slots(
    demo: StoredModel, wanted: list[int], slots: str, host: int | None
) -> None:
    assert tokens(demo, host=host, expert_cache=slots) == wanted


@pytest.mark.parametrize("options", [{"prefetch": False}, *({"predictor": name} for name in PREDICTORS)], ids=str)
def test_tokens_are_the_same_with_and_without_prefetch(
    demo: StoredModel, wanted: list[int], options: dict[str, Any]
) -> None:
    assert tokens(demo, host=20, expert_cache="30%", **options) == wanted


@pytest.mark.parametrize("pinned", [0, 1 << 20])
def test_tokens_are_the_same_where_the_system_pins_little(demo: StoredModel, wanted: list[int], pinned: int) -> None:
    notices: list[str] = []
    with opened(demo, emulated(pinned), expert_cache="30%", reporting=Reporting(notices.append)) as model:
        assert answer(model) == wanted
        assert sum("pinned, the system refuses more" in notice for notice in notices) == 1


def test_slots_that_the_plan_leaves_pageable_give_the_same_tokens_and_are_told(
    demo: StoredModel, wanted: list[int]
) -> None:
    notices: list[str] = []
    with opened(demo, host=40, pinned=25, expert_cache="30%", reporting=Reporting(notices.append)) as model:
        assert answer(model) == wanted
        assert sum("pinned, at most 75 % of memory is" in notice for notice in notices) == 1


class PinsNoMore(EmulatedDevice):
    """Of a system that has given all that it pins as soon as the experts are pinned."""

    full = False

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.full:
            raise DeviceError("the system does not pin more")
        return super().pinned(shape, dtype)


def on_a_full_host() -> OpenGpu:
    device = PinsNoMore()

    class Filling(LateCopier):
        def register(self, *args: Any) -> int:
            device.full = True
            return super().register(*args)

    return OpenGpu(
        "Emulated", device, recorded(device, Ops(TorchVectorOps(), TorchMatrixOps())), Filling(), 1 << 40, 1 << 40
    )


@pytest.mark.parametrize("host", [20, None], ids=lambda host: f"host-{host}")
def test_nothing_is_pinned_behind_the_experts(demo: StoredModel, wanted: list[int], host: int | None) -> None:
    """A system like WSL2 pins a GiB in all, and all that is left of it goes to the experts."""
    with opened(demo, on_a_full_host(), host=host, expert_cache="30%") as model:
        assert answer(model) == wanted
        assert answer_tokens(model) == wanted


def test_a_host_that_refuses_is_told_and_takes_no_slot_of_the_device(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[str] = []
    with opened(demo, on_a_full_host(), host=20, expert_cache="60%", reporting=Reporting(notices.append)) as model:
        run = model.runner
        assert isinstance(run, GpuRunner)
        monkeypatch.setattr(run.network, "step", lambda *_, **__: run._gpu.device.pinned((1,), torch.int32))
        before = run.tier.num_slots
        with pytest.raises(DeviceError, match="does not pin"):
            answer(model)
        assert run.tier.num_slots == before and not any("memory ran out" in notice for notice in notices)


@pytest.mark.parametrize("quant", ["q8_0", "q4_k", "mxfp4"])
def test_tokens_of_every_format_are_the_same_for_every_number_of_slots(quant: str, tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant=quant), home=tmp_path)
    whole = tokens(stored)
    assert tokens(stored, expert_cache="25%") == whole
    assert tokens(stored, host=20, expert_cache="25%") == whole


@pytest.mark.parametrize("slots", ["40%", "100%"])
def test_tokens_in_float32_are_those_of_the_cpu(in_float32: StoredModel, slots: str) -> None:
    on_cpu = all_logits(in_float32, None, expert_cache=slots)
    for ours, theirs in zip(all_logits(in_float32, emulated(), expert_cache=slots), on_cpu, strict=True):
        assert (ours - theirs).abs().max() < 1e-4
        assert ours.argmax() == theirs.argmax()


def test_tokens_of_tritons_kernels_are_those_of_their_twins(in_float32: StoredModel) -> None:
    """In the interpreter; bfloat16, which it rounds otherwise, is for the tests on a GPU."""
    pytest.importorskip("triton", reason="triton is not installed")
    ours = all_logits(in_float32, interpreted(), 4, expert_cache="40%")
    for mine, theirs in zip(ours, all_logits(in_float32, emulated(), 4, expert_cache="40%"), strict=True):
        assert (mine - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_of_every_family_are_those_of_the_cpu(kind: str, demo: StoredModel, tmp_path: Path) -> None:
    stored = in_family(FAMILIES[kind], demo, tmp_path)
    near(all_logits(stored, emulated(), 8, expert_cache="60%"), all_logits(stored, None, 8, expert_cache="60%"))


def test_biased_clamped_experts_and_sinks_of_tritons_kernels_are_those_of_the_cpu(
    demo: StoredModel, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    stored = in_family(FAMILIES["gpt_oss"] | {"num_hidden_layers": 2}, demo, tmp_path)
    near(all_logits(stored, interpreted(), 3, expert_cache="60%"), all_logits(stored, None, 3, expert_cache="60%"))


def test_with_a_share_computed_by_the_cpu_logits_are_the_same_but_for_rounding(
    in_float32: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr("moeinf.runtime.gpu.cpu_share.CpuShare.share", lambda self, missing: (missing + 1) // 2)
    monkeypatch.setattr(
        "moeinf.runtime.gpu.cpu_share.CpuShare.computed", lambda self, count, seconds: taken.append(count)
    )
    alone = all_logits(in_float32, emulated(), expert_cache="40%")
    for ours, theirs in zip(
        all_logits(in_float32, emulated(), expert_cache="40%", cpu_experts=True), alone, strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-4
    assert sum(taken) > 0


def test_dense_weights_pass_through_a_buffer_and_no_other_host_memory(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy tells tracemalloc what it takes, torch, whose tensors are the device's, does not."""
    small_buffer = partial(FilePieces, buffer_bytes=32 << 10)
    monkeypatch.setattr("moeinf.engine.weights.dense_file.FilePieces", small_buffer)
    seen: list[tuple[int, int]] = []
    peaks: list[int] = []
    streamed = DenseFile.streamed

    @contextmanager
    def measured(dense: DenseFile, *arguments: Any) -> Iterator[Any]:
        with streamed(dense, *arguments) as tensors:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            yield tensors
            peaks.append(tracemalloc.get_traced_memory()[1] - before)

    monkeypatch.setattr(DenseFile, "streamed", measured)
    tracemalloc.start()
    try:
        with opened(demo, reporting=Reporting(progress=lambda done, total: seen.append((done, total)))) as model:
            dense_bytes = model.plan.dense_bytes
            assert answer(model) == wanted
    finally:
        tracemalloc.stop()
    assert peaks[0] < dense_bytes / 4, "Python's objects, and vectors"
    before_experts = [done for done, _ in seen if done <= dense_bytes]
    assert before_experts == sorted(before_experts) and before_experts[0] == 0
    assert dense_bytes - before_experts[-1] < 64 << 10, "the file's header"
    assert len(before_experts) > dense_bytes / (16 << 10)


def test_pinning_is_told_and_ends_with_an_interrupt_that_leaves_nothing(demo: StoredModel) -> None:
    told: list[tuple[int, int]] = []
    reporting = Reporting(pin_progress=lambda done, total: told.append((done, total)))
    with opened(demo, host=20, expert_cache="30%", reporting=reporting):
        size = 20 * demo.manifest.layout.stride_bytes
    assert told == [(size // 2, size), (size, size)]

    class Closed(LateCopier):
        closed = False

        def close(self) -> None:
            super().close()
            self.closed = True

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    gpu = emulated(copier=Closed)
    with pytest.raises(KeyboardInterrupt):
        opened(demo, gpu, host=20, expert_cache="30%", reporting=Reporting(pin_progress=interrupt))
    assert isinstance(gpu.copier, Closed) and gpu.copier.closed


def test_a_damaged_block_of_the_dense_weights_is_named_on_its_way_to_the_device(tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant_dense="q8_0"), home=tmp_path)
    spec = next(
        spec
        for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense)
        if spec.dtype == "q8_0" and spec.name.endswith("o_proj.weight")
    )
    with stored.dense_path.open("r+b") as file:
        file.seek(spec.offset_bytes + 5 * 34)
        file.write(b"\x00\x7e")  # a scale that is no number
    with pytest.raises(StoreError, match=f"{re.escape(spec.name)}.* block 5 is NaN"):
        opened(stored)


def test_a_second_request_goes_on_with_the_first_ones_keys_and_experts(demo: StoredModel, wanted: list[int]) -> None:
    for host in (20, None):
        with opened(demo, host=host, expert_cache="30%") as model:
            assert answer(model) == wanted
            again = model.generate(PROMPT, model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
            assert again.token_ids == wanted
            assert again.stats.cached_tokens > 0


def test_decode_needs_no_host_where_the_device_reaches_every_expert(demo: StoredModel) -> None:
    gpu = emulated()
    with opened(demo, gpu, expert_cache="30%") as model:
        answer(model)
        assert isinstance(gpu.device, EmulatedDevice)
        assert gpu.device.num_captures == 1, "a whole token is one graph"
        assert model.last is not None
        assert model.last.stats.decode_cache.demand_reads > 0, "the device fetched what was missing"


@pytest.mark.parametrize("host", [20, None], ids=lambda host: f"host-{host}")
def test_what_was_recorded_for_an_answer_is_repeated_for_the_next(
    demo: StoredModel, wanted: list[int], host: int | None
) -> None:
    gpu = emulated()
    assert isinstance(gpu.device, EmulatedDevice)
    with opened(demo, gpu, host=host, expert_cache="30%") as model:
        assert answer(model) == wanted
        captures = gpu.device.num_captures
        model.generator.sequences.last.forget()  # so that the whole prompt comes between
        assert answer(model) == wanted
        assert gpu.device.num_captures == captures


def test_decode_goes_layer_by_layer_where_experts_come_from_the_disk(demo: StoredModel) -> None:
    gpu = emulated()
    with opened(demo, gpu, host=20, expert_cache="30%") as model:
        answer(model)
        assert isinstance(gpu.device, EmulatedDevice)
        assert gpu.device.num_captures == 2 * demo.manifest.moe.num_layers + 1


def test_what_the_last_tokens_of_a_prompt_use_is_on_the_device_when_it_ends(demo: StoredModel) -> None:
    moe = demo.manifest.moe
    with opened(demo, host=20, expert_cache=f"{100 * (moe.num_experts + 1) // moe.total_experts + 1}%") as model:
        seen: list[IntArray] = []
        observer = model.generator.listeners.recorder.observe

        def observe(layer: int, ids: IntArray) -> None:
            seen.append(ids[-1].copy())
            observer(layer, ids)

        model.generator.listeners.recorder.observe = observe  # type: ignore[method-assign]
        ids = model.encode(PROMPT)
        model.replay(ids[:16], [])
        last_layer = seen[moe.num_layers - 1]
        assert model.tier.prefetches.known(moe.num_layers - 1)[0, last_layer].all()


def test_when_device_memory_runs_out_slots_are_given_up_and_the_text_is_the_same(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in (20, None):
        notices: list[str] = []
        with opened(demo, in_fours(demo), host=host, expert_cache="60%", reporting=Reporting(notices.append)) as model:
            run = model.runner
            assert isinstance(run, GpuRunner)
            calls, forward = [0], run.network.step

            def scarce(*args: Any, calls: list[int] = calls, forward: Any = forward, **how: Any) -> Any:
                calls[0] += 1
                if calls[0] in (2, 9, 10):
                    raise torch.OutOfMemoryError("no more")
                return forward(*args, **how)

            monkeypatch.setattr(run.network, "step", scarce)
            before = run.tier.num_slots
            assert answer(model) == wanted
            assert run.tier.num_slots == 4 * (-(-before // 4) - 3), "three segments left"
            assert sum("memory ran out" in notice for notice in notices) == 3


@pytest.mark.parametrize("host", [20, None])
def test_memory_that_runs_out_in_the_middle_of_a_step_takes_no_slot_into_which_a_copy_is_under_way(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch, host: int | None
) -> None:
    calls, shrink, run = [0], DeviceArena.shrink, DeviceExperts.run

    def scarce(*args: Any) -> None:
        calls[0] += 1
        if calls[0] in (2, 7, 9, 16, 23):
            raise torch.OutOfMemoryError("no more")
        run(*args)

    notices: list[str] = []
    with opened(demo, in_fours(demo), host=host, expert_cache="70%", reporting=Reporting(notices.append)) as model:
        gpu: Any = model.runner
        left = [0]

        def checked(arena: DeviceArena) -> None:
            left[0] += gpu._gpu.copier.num_pending
            shrink(arena)

        monkeypatch.setattr(DeviceArena, "shrink", checked)
        monkeypatch.setattr(DeviceExperts, "run", scarce)
        assert answer_tokens(model) == wanted
        assert sum("memory ran out" in notice for notice in notices) == 5 and left == [0]


def scarce_memory(monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """There are only so many segments of memory for slots."""
    left, empty = [segments], torch.empty

    def take(*args: Any, **kwargs: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("no more")
        return empty(*args, **kwargs)

    fake = SimpleNamespace(empty=take, uint8=torch.uint8, OutOfMemoryError=torch.OutOfMemoryError)
    monkeypatch.setattr("moeinf.gpu.arena.torch", fake)


@pytest.mark.parametrize("slots", ["60%", "100%"])
def test_with_less_device_memory_than_planned_there_are_fewer_slots_and_the_text_is_the_same(
    demo: StoredModel, wanted: list[int], monkeypatch: pytest.MonkeyPatch, slots: str
) -> None:
    scarce_memory(monkeypatch, segments=5)
    notices: list[str] = []
    with opened(demo, in_fours(demo), host=20, expert_cache=slots, reporting=Reporting(notices.append)) as model:
        assert model.tier.num_slots == 20
        assert sum("not" in notice and "as planned" in notice for notice in notices) == 1
        assert answer(model) == wanted


def test_a_device_with_memory_for_no_token_is_refused_in_one_line(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    scarce_memory(monkeypatch, segments=0)
    with pytest.raises(OutOfMemoryError, match="nvidia-smi"):
        opened(demo, in_fours(demo))


def test_when_no_slots_are_left_to_give_up_memory_is_said_to_be_short(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(demo, host=20, expert_cache="30%") as model:
        run = model.runner
        assert isinstance(run, GpuRunner)

        def none_left(*args: Any, **how: Any) -> Any:
            raise torch.OutOfMemoryError("no more")

        monkeypatch.setattr(run.network, "step", none_left)
        with pytest.raises(OutOfMemoryError, match="nvidia-smi"):
            answer(model)


def test_a_shard_truncated_while_running_is_an_error_that_names_the_expert(tmp_path: Path) -> None:
    stored = pull("demo", home=tmp_path)
    with opened(stored, host=8, expert_cache="8%") as model:
        shard = stored.shard_paths[1]
        whole = shard.read_bytes()
        shard.write_bytes(b"")
        with pytest.raises(ExpertReadError, match="layer 1"):
            answer(model)
        shard.write_bytes(whole)
        assert len(answer(model)) == NUM_TOKENS


@pytest.mark.parametrize("slots", ["8%", "100%"])
@pytest.mark.parametrize("host", [8, None], ids=lambda host: f"host-{host}")
def test_damaged_weights_are_named_on_their_way_to_the_device(tmp_path: Path, slots: str, host: int | None) -> None:
    """Experts where the host's memory is filled, dense tensors and rows of the embedding where the device's is."""
    stored = pull("demo", home=tmp_path)
    shard = stored.shard_paths[1]
    whole = shard.read_bytes()
    shard.write_bytes(bytes(len(whole)))
    with pytest.raises(ExpertReadError, match=r"of layer 1 is damaged in .*`moeinf verify demo:latest`"):
        tokens(stored, host=host, expert_cache=slots)
    shard.write_bytes(whole)
    for spec in dense_tensors(stored.dense_path)[:2]:
        with open(stored.dense_path, "r+b") as file:
            file.seek(spec.offset_bytes)
            sound = file.read(spec.num_bytes)
            file.seek(spec.offset_bytes)
            file.write((np.frombuffer(sound, np.uint8) ^ 1).tobytes())
            file.flush()
            with pytest.raises(StoreError, match=rf"tensor '{spec.name}' in .*dense\.safetensors does not match"):
                tokens(stored, host=host, expert_cache=slots)
            file.seek(spec.offset_bytes)
            file.write(sound)


@pytest.mark.parametrize(
    "options",
    [{"host": 8, "expert_cache": "8%"}, {"host": 20, "expert_cache": "30%"}, {"expert_cache": "100%"}],
    ids=str,
)
def test_weights_that_are_no_numbers_end_the_request_in_one_line(demo: StoredModel, options: dict[str, Any]) -> None:
    """A layer at a time the host sees the routing; of one graph a token, the logits."""
    with opened(demo, **options) as model:
        run = model.runner
        wanted = answer(model)
        block: Any = vars(run.network)["_blocks"][3]
        router = block.router
        with (
            patch.object(block, "router", lambda x: spoiled(router(x))),
            pytest.raises(NotFiniteError, match=r"layer 3 gives no numbers|non-finite logits"),
        ):
            model.generate(PROMPT[::-1], model.params(temperature=0.0, num_predict=NUM_TOKENS, stop=()))
        assert answer(model) == wanted


def spoiled(routed: Any) -> Any:
    hidden, routing = routed
    routing.weights.fill_(torch.nan)
    return hidden, routing


@pytest.mark.parametrize("host", [20, None], ids=lambda host: f"host-{host}")
def test_a_closed_model_holds_nothing_of_the_device(demo: StoredModel, host: int | None) -> None:
    """Not even until garbage is collected, and whoever still holds the model: the next one is planned with that."""
    model = opened(demo, host=host, expert_cache="30%")
    assert answer_tokens(model)
    run: Any = model.runner
    held = [weakref.ref(thing) for thing in (run, run.network, run.cache, run._table, run._gpu.ops.matrices)]
    held += [weakref.ref(tensor) for tensor in run._cards[0].arena._segments]
    assert all(ref() is not None for ref in held)
    del run
    gc.disable()
    try:
        model.close()
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()
    model.close()


def test_the_figures_of_an_answer_tell_both_memories(demo: StoredModel) -> None:
    with opened(demo, expert_cache="30%") as model:
        answer(model)
        assert model.last is not None
        assert "VRAM 2.9 MiB peak, RAM" in "\n".join(stats_lines(model.last.stats, model))


def test_one_line_says_where_the_memory_went(demo: StoredModel) -> None:
    with opened(demo, host=20, expert_cache="30%") as model:
        line = model.describe()
        assert "Emulated, VRAM" in line
        assert f"experts {model.tier.num_slots}/{demo.manifest.moe.total_experts}" in line
        assert "rest on disk" in line
